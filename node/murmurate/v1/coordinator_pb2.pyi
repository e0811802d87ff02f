from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StopRun(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class RunStops(_message.Message):
    __slots__ = ("version", "run", "members")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    version: int
    run: str
    members: int
    def __init__(self, version: _Optional[int] = ..., run: _Optional[str] = ..., members: _Optional[int] = ...) -> None: ...

class Work(_message.Message):
    __slots__ = ("hello", "push", "offset", "raw", "doing", "bye", "checksum", "take")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PUSH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    DOING_FIELD_NUMBER: _ClassVar[int]
    BYE_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    TAKE_FIELD_NUMBER: _ClassVar[int]
    hello: WorkHello
    push: Return
    offset: int
    raw: bytes
    doing: Doing
    bye: bool
    checksum: int
    take: Take
    def __init__(self, hello: _Optional[_Union[WorkHello, _Mapping]] = ..., push: _Optional[_Union[Return, _Mapping]] = ..., offset: _Optional[int] = ..., raw: _Optional[bytes] = ..., doing: _Optional[_Union[Doing, _Mapping]] = ..., bye: bool = ..., checksum: _Optional[int] = ..., take: _Optional[_Union[Take, _Mapping]] = ...) -> None: ...

class WorkHello(_message.Message):
    __slots__ = ("version", "run", "name", "instance", "structure", "width", "memory_bytes", "lease", "lease_version", "mode")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    STRUCTURE_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    LEASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    version: int
    run: str
    name: str
    instance: str
    structure: bytes
    width: float
    memory_bytes: int
    lease: int
    lease_version: int
    mode: str
    def __init__(self, version: _Optional[int] = ..., run: _Optional[str] = ..., name: _Optional[str] = ..., instance: _Optional[str] = ..., structure: _Optional[bytes] = ..., width: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., lease: _Optional[int] = ..., lease_version: _Optional[int] = ..., mode: _Optional[str] = ...) -> None: ...

class Return(_message.Message):
    __slots__ = ("plan", "lease", "version", "steps", "samples", "loss", "seconds", "value_bytes")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    VALUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    plan: int
    lease: int
    version: int
    steps: int
    samples: int
    loss: float
    seconds: float
    value_bytes: int
    def __init__(self, plan: _Optional[int] = ..., lease: _Optional[int] = ..., version: _Optional[int] = ..., steps: _Optional[int] = ..., samples: _Optional[int] = ..., loss: _Optional[float] = ..., seconds: _Optional[float] = ..., value_bytes: _Optional[int] = ...) -> None: ...

class Doing(_message.Message):
    __slots__ = ("samples", "steps", "samples_per_s", "loss", "wait_s")
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_S_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    samples: int
    steps: int
    samples_per_s: float
    loss: float
    wait_s: float
    def __init__(self, samples: _Optional[int] = ..., steps: _Optional[int] = ..., samples_per_s: _Optional[float] = ..., loss: _Optional[float] = ..., wait_s: _Optional[float] = ...) -> None: ...

class Take(_message.Message):
    __slots__ = ("beat", "swarm", "more", "here", "twice", "keeps", "back", "spent")
    BEAT_FIELD_NUMBER: _ClassVar[int]
    SWARM_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    HERE_FIELD_NUMBER: _ClassVar[int]
    TWICE_FIELD_NUMBER: _ClassVar[int]
    KEEPS_FIELD_NUMBER: _ClassVar[int]
    BACK_FIELD_NUMBER: _ClassVar[int]
    SPENT_FIELD_NUMBER: _ClassVar[int]
    beat: int
    swarm: str
    more: int
    here: _containers.RepeatedScalarFieldContainer[int]
    twice: _containers.RepeatedScalarFieldContainer[int]
    keeps: _containers.RepeatedScalarFieldContainer[int]
    back: _containers.RepeatedScalarFieldContainer[int]
    spent: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, beat: _Optional[int] = ..., swarm: _Optional[str] = ..., more: _Optional[int] = ..., here: _Optional[_Iterable[int]] = ..., twice: _Optional[_Iterable[int]] = ..., keeps: _Optional[_Iterable[int]] = ..., back: _Optional[_Iterable[int]] = ..., spent: _Optional[_Iterable[int]] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("welcome", "give", "offset", "raw", "taken", "not_taken", "waits", "stop", "checksum", "batches", "lease")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    GIVE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    NOT_TAKEN_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    welcome: WorkWelcome
    give: Give
    offset: int
    raw: bytes
    taken: Taken
    not_taken: NotTaken
    waits: str
    stop: str
    checksum: int
    batches: Batches
    lease: BatchLease
    def __init__(self, welcome: _Optional[_Union[WorkWelcome, _Mapping]] = ..., give: _Optional[_Union[Give, _Mapping]] = ..., offset: _Optional[int] = ..., raw: _Optional[bytes] = ..., taken: _Optional[_Union[Taken, _Mapping]] = ..., not_taken: _Optional[_Union[NotTaken, _Mapping]] = ..., waits: _Optional[str] = ..., stop: _Optional[str] = ..., checksum: _Optional[int] = ..., batches: _Optional[_Union[Batches, _Mapping]] = ..., lease: _Optional[_Union[BatchLease, _Mapping]] = ...) -> None: ...

class WorkWelcome(_message.Message):
    __slots__ = ("version", "run", "instance", "rule", "steps", "lease_holds", "lease_version", "plan", "mode", "pipelined")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    LEASE_HOLDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    PIPELINED_FIELD_NUMBER: _ClassVar[int]
    version: int
    run: str
    instance: str
    rule: str
    steps: int
    lease_holds: bool
    lease_version: int
    plan: int
    mode: str
    pipelined: bool
    def __init__(self, version: _Optional[int] = ..., run: _Optional[str] = ..., instance: _Optional[str] = ..., rule: _Optional[str] = ..., steps: _Optional[int] = ..., lease_holds: bool = ..., lease_version: _Optional[int] = ..., plan: _Optional[int] = ..., mode: _Optional[str] = ..., pipelined: bool = ...) -> None: ...

class Give(_message.Message):
    __slots__ = ("plan", "lease", "version", "held", "value_bytes", "spent")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    VALUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SPENT_FIELD_NUMBER: _ClassVar[int]
    plan: int
    lease: int
    version: int
    held: bytes
    value_bytes: int
    spent: float
    def __init__(self, plan: _Optional[int] = ..., lease: _Optional[int] = ..., version: _Optional[int] = ..., held: _Optional[bytes] = ..., value_bytes: _Optional[int] = ..., spent: _Optional[float] = ...) -> None: ...

class Batches(_message.Message):
    __slots__ = ("numbers", "samples", "tensors", "value_bytes")
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    VALUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    numbers: _containers.RepeatedScalarFieldContainer[int]
    samples: int
    tensors: _containers.RepeatedCompositeFieldContainer[BatchTensor]
    value_bytes: int
    def __init__(self, numbers: _Optional[_Iterable[int]] = ..., samples: _Optional[int] = ..., tensors: _Optional[_Iterable[_Union[BatchTensor, _Mapping]]] = ..., value_bytes: _Optional[int] = ...) -> None: ...

class BatchTensor(_message.Message):
    __slots__ = ("dtype", "shape")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class BatchLease(_message.Message):
    __slots__ = ("beat", "numbers")
    BEAT_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    beat: int
    numbers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, beat: _Optional[int] = ..., numbers: _Optional[_Iterable[int]] = ...) -> None: ...

class Taken(_message.Message):
    __slots__ = ("lease", "version", "staleness", "spent")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    SPENT_FIELD_NUMBER: _ClassVar[int]
    lease: int
    version: int
    staleness: int
    spent: float
    def __init__(self, lease: _Optional[int] = ..., version: _Optional[int] = ..., staleness: _Optional[int] = ..., spent: _Optional[float] = ...) -> None: ...

class NotTaken(_message.Message):
    __slots__ = ("lease", "version", "reason", "sentence")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    lease: int
    version: int
    reason: str
    sentence: str
    def __init__(self, lease: _Optional[int] = ..., version: _Optional[int] = ..., reason: _Optional[str] = ..., sentence: _Optional[str] = ...) -> None: ...

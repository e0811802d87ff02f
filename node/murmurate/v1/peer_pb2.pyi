from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATE_UNSPECIFIED: _ClassVar[State]
    STATE_ALIVE: _ClassVar[State]
    STATE_SUSPECT: _ClassVar[State]
    STATE_DEAD: _ClassVar[State]
    STATE_LEFT: _ClassVar[State]
STATE_UNSPECIFIED: State
STATE_ALIVE: State
STATE_SUSPECT: State
STATE_DEAD: State
STATE_LEFT: State

class Frame(_message.Message):
    __slots__ = ("hello", "notes", "bulk", "raw", "reply")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    BULK_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    notes: _containers.RepeatedCompositeFieldContainer[Note]
    bulk: Bulk
    raw: bytes
    reply: Reply
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., notes: _Optional[_Iterable[_Union[Note, _Mapping]]] = ..., bulk: _Optional[_Union[Bulk, _Mapping]] = ..., raw: _Optional[bytes] = ..., reply: _Optional[_Union[Reply, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("version", "run", "swarm", "schema", "name", "epoch", "address", "link", "seen")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    SWARM_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    version: int
    run: str
    swarm: str
    schema: str
    name: str
    epoch: int
    address: str
    link: int
    seen: int
    def __init__(self, version: _Optional[int] = ..., run: _Optional[str] = ..., swarm: _Optional[str] = ..., schema: _Optional[str] = ..., name: _Optional[str] = ..., epoch: _Optional[int] = ..., address: _Optional[str] = ..., link: _Optional[int] = ..., seen: _Optional[int] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("grants", "landed", "last", "refusal")
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    LANDED_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    grants: _containers.RepeatedCompositeFieldContainer[Grant]
    landed: int
    last: bool
    refusal: Refusal
    def __init__(self, grants: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ..., landed: _Optional[int] = ..., last: bool = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("status", "sentence")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    status: int
    sentence: str
    def __init__(self, status: _Optional[int] = ..., sentence: _Optional[str] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("number", "offset", "skip")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    number: int
    offset: int
    skip: bool
    def __init__(self, number: _Optional[int] = ..., offset: _Optional[int] = ..., skip: bool = ...) -> None: ...

class Bulk(_message.Message):
    __slots__ = ("number", "offset", "total", "push", "snapshot", "share", "offer", "key", "checksum")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    PUSH_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    number: int
    offset: int
    total: int
    push: PushHead
    snapshot: SnapshotHead
    share: ShareHead
    offer: bool
    key: int
    checksum: int
    def __init__(self, number: _Optional[int] = ..., offset: _Optional[int] = ..., total: _Optional[int] = ..., push: _Optional[_Union[PushHead, _Mapping]] = ..., snapshot: _Optional[_Union[SnapshotHead, _Mapping]] = ..., share: _Optional[_Union[ShareHead, _Mapping]] = ..., offer: bool = ..., key: _Optional[int] = ..., checksum: _Optional[int] = ...) -> None: ...

class PushHead(_message.Message):
    __slots__ = ("dtype", "lives", "stamps", "parts", "size")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    LIVES_FIELD_NUMBER: _ClassVar[int]
    STAMPS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    lives: _containers.RepeatedCompositeFieldContainer[Life]
    stamps: _containers.RepeatedCompositeFieldContainer[Stamp]
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    size: int
    def __init__(self, dtype: _Optional[str] = ..., lives: _Optional[_Iterable[_Union[Life, _Mapping]]] = ..., stamps: _Optional[_Iterable[_Union[Stamp, _Mapping]]] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ..., size: _Optional[int] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("codec", "bytes")
    CODEC_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    codec: str
    bytes: int
    def __init__(self, codec: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...

class Life(_message.Message):
    __slots__ = ("origin", "epoch")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    origin: str
    epoch: int
    def __init__(self, origin: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class Stamp(_message.Message):
    __slots__ = ("life", "seq", "context", "back", "added", "batches", "written")
    LIFE_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    BACK_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    life: int
    seq: int
    context: bytes
    back: int
    added: _containers.RepeatedScalarFieldContainer[int]
    batches: _containers.RepeatedScalarFieldContainer[int]
    written: bool
    def __init__(self, life: _Optional[int] = ..., seq: _Optional[int] = ..., context: _Optional[bytes] = ..., back: _Optional[int] = ..., added: _Optional[_Iterable[int]] = ..., batches: _Optional[_Iterable[int]] = ..., written: bool = ...) -> None: ...

class SnapshotHead(_message.Message):
    __slots__ = ("dtype", "clock", "history", "members", "batches", "repeated_batches")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    REPEATED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    clock: bytes
    history: _containers.RepeatedCompositeFieldContainer[Generation]
    members: _containers.RepeatedCompositeFieldContainer[Rumour]
    batches: _containers.RepeatedScalarFieldContainer[int]
    repeated_batches: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, dtype: _Optional[str] = ..., clock: _Optional[bytes] = ..., history: _Optional[_Iterable[_Union[Generation, _Mapping]]] = ..., members: _Optional[_Iterable[_Union[Rumour, _Mapping]]] = ..., batches: _Optional[_Iterable[int]] = ..., repeated_batches: _Optional[_Iterable[int]] = ...) -> None: ...

class ShareHead(_message.Message):
    __slots__ = ("seq", "epoch", "to_epoch", "clock", "dtype", "weight")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TO_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    seq: int
    epoch: int
    to_epoch: int
    clock: bytes
    dtype: str
    weight: float
    def __init__(self, seq: _Optional[int] = ..., epoch: _Optional[int] = ..., to_epoch: _Optional[int] = ..., clock: _Optional[bytes] = ..., dtype: _Optional[str] = ..., weight: _Optional[float] = ...) -> None: ...

class Note(_message.Message):
    __slots__ = ("digest", "want", "lack", "snapshot_request", "ping", "ping_request", "ack", "prepare", "promise", "accept", "accepted", "decided", "receipt", "progress")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    WANT_FIELD_NUMBER: _ClassVar[int]
    LACK_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_REQUEST_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    PING_REQUEST_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    PROMISE_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    digest: Digest
    want: Want
    lack: Lack
    snapshot_request: SnapshotRequest
    ping: Ping
    ping_request: PingRequest
    ack: Ack
    prepare: Prepare
    promise: Promise
    accept: Accept
    accepted: Accepted
    decided: Decided
    receipt: Receipt
    progress: Progress
    def __init__(self, digest: _Optional[_Union[Digest, _Mapping]] = ..., want: _Optional[_Union[Want, _Mapping]] = ..., lack: _Optional[_Union[Lack, _Mapping]] = ..., snapshot_request: _Optional[_Union[SnapshotRequest, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., ping_request: _Optional[_Union[PingRequest, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., prepare: _Optional[_Union[Prepare, _Mapping]] = ..., promise: _Optional[_Union[Promise, _Mapping]] = ..., accept: _Optional[_Union[Accept, _Mapping]] = ..., accepted: _Optional[_Union[Accepted, _Mapping]] = ..., decided: _Optional[_Union[Decided, _Mapping]] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ...) -> None: ...

class Digest(_message.Message):
    __slots__ = ("epoch", "clock", "durable", "ask", "kept", "later", "memory")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    ASK_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    LATER_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    clock: bytes
    durable: bytes
    ask: bool
    kept: int
    later: _containers.RepeatedScalarFieldContainer[bytes]
    memory: int
    def __init__(self, epoch: _Optional[int] = ..., clock: _Optional[bytes] = ..., durable: _Optional[bytes] = ..., ask: bool = ..., kept: _Optional[int] = ..., later: _Optional[_Iterable[bytes]] = ..., memory: _Optional[int] = ...) -> None: ...

class Range(_message.Message):
    __slots__ = ("origin", "epoch", "first", "last")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    origin: str
    epoch: int
    first: int
    last: int
    def __init__(self, origin: _Optional[str] = ..., epoch: _Optional[int] = ..., first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class Want(_message.Message):
    __slots__ = ("ranges",)
    RANGES_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedCompositeFieldContainer[Range]
    def __init__(self, ranges: _Optional[_Iterable[_Union[Range, _Mapping]]] = ...) -> None: ...

class Lack(_message.Message):
    __slots__ = ("ranges",)
    RANGES_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedCompositeFieldContainer[Range]
    def __init__(self, ranges: _Optional[_Iterable[_Union[Range, _Mapping]]] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Rumour(_message.Message):
    __slots__ = ("name", "epoch", "incarnation", "state", "address", "source", "last")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    name: str
    epoch: int
    incarnation: int
    state: State
    address: str
    source: str
    last: int
    def __init__(self, name: _Optional[str] = ..., epoch: _Optional[int] = ..., incarnation: _Optional[int] = ..., state: _Optional[_Union[State, str]] = ..., address: _Optional[str] = ..., source: _Optional[str] = ..., last: _Optional[int] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("number", "rumours")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RUMOURS_FIELD_NUMBER: _ClassVar[int]
    number: int
    rumours: _containers.RepeatedCompositeFieldContainer[Rumour]
    def __init__(self, number: _Optional[int] = ..., rumours: _Optional[_Iterable[_Union[Rumour, _Mapping]]] = ...) -> None: ...

class PingRequest(_message.Message):
    __slots__ = ("number", "target", "rumours")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    RUMOURS_FIELD_NUMBER: _ClassVar[int]
    number: int
    target: str
    rumours: _containers.RepeatedCompositeFieldContainer[Rumour]
    def __init__(self, number: _Optional[int] = ..., target: _Optional[str] = ..., rumours: _Optional[_Iterable[_Union[Rumour, _Mapping]]] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("number", "about", "nack", "rumours")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ABOUT_FIELD_NUMBER: _ClassVar[int]
    NACK_FIELD_NUMBER: _ClassVar[int]
    RUMOURS_FIELD_NUMBER: _ClassVar[int]
    number: int
    about: str
    nack: bool
    rumours: _containers.RepeatedCompositeFieldContainer[Rumour]
    def __init__(self, number: _Optional[int] = ..., about: _Optional[str] = ..., nack: bool = ..., rumours: _Optional[_Iterable[_Union[Rumour, _Mapping]]] = ...) -> None: ...

class Ballot(_message.Message):
    __slots__ = ("number", "name")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    number: int
    name: str
    def __init__(self, number: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class Fold(_message.Message):
    __slots__ = ("origin", "epoch", "runs")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    origin: str
    epoch: int
    runs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, origin: _Optional[str] = ..., epoch: _Optional[int] = ..., runs: _Optional[_Iterable[int]] = ...) -> None: ...

class Generation(_message.Message):
    __slots__ = ("number", "roster", "folds", "evicted", "memories")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    FOLDS_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    MEMORIES_FIELD_NUMBER: _ClassVar[int]
    number: int
    roster: _containers.RepeatedScalarFieldContainer[str]
    folds: _containers.RepeatedCompositeFieldContainer[Fold]
    evicted: _containers.RepeatedScalarFieldContainer[str]
    memories: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, number: _Optional[int] = ..., roster: _Optional[_Iterable[str]] = ..., folds: _Optional[_Iterable[_Union[Fold, _Mapping]]] = ..., evicted: _Optional[_Iterable[str]] = ..., memories: _Optional[_Iterable[int]] = ...) -> None: ...

class Prepare(_message.Message):
    __slots__ = ("number", "ballot", "candidates", "evict")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    EVICT_FIELD_NUMBER: _ClassVar[int]
    number: int
    ballot: Ballot
    candidates: _containers.RepeatedCompositeFieldContainer[Life]
    evict: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, number: _Optional[int] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., candidates: _Optional[_Iterable[_Union[Life, _Mapping]]] = ..., evict: _Optional[_Iterable[str]] = ...) -> None: ...

class Promise(_message.Message):
    __slots__ = ("number", "ballot", "held", "not_gone", "accepted_ballot", "accepted", "memory")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    NOT_GONE_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_BALLOT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    number: int
    ballot: Ballot
    held: _containers.RepeatedCompositeFieldContainer[Fold]
    not_gone: _containers.RepeatedScalarFieldContainer[str]
    accepted_ballot: Ballot
    accepted: Generation
    memory: int
    def __init__(self, number: _Optional[int] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., held: _Optional[_Iterable[_Union[Fold, _Mapping]]] = ..., not_gone: _Optional[_Iterable[str]] = ..., accepted_ballot: _Optional[_Union[Ballot, _Mapping]] = ..., accepted: _Optional[_Union[Generation, _Mapping]] = ..., memory: _Optional[int] = ...) -> None: ...

class Accept(_message.Message):
    __slots__ = ("ballot", "value")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    value: Generation
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., value: _Optional[_Union[Generation, _Mapping]] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("number", "ballot", "memory")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    number: int
    ballot: Ballot
    memory: int
    def __init__(self, number: _Optional[int] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., memory: _Optional[int] = ...) -> None: ...

class Decided(_message.Message):
    __slots__ = ("generations",)
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    generations: _containers.RepeatedCompositeFieldContainer[Generation]
    def __init__(self, generations: _Optional[_Iterable[_Union[Generation, _Mapping]]] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("seq", "epoch", "to_epoch")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TO_EPOCH_FIELD_NUMBER: _ClassVar[int]
    seq: int
    epoch: int
    to_epoch: int
    def __init__(self, seq: _Optional[int] = ..., epoch: _Optional[int] = ..., to_epoch: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("name", "epoch", "version", "samples", "samples_per_s", "step_s", "loss", "test_loss", "accuracy", "validation_loss", "validation_accuracy", "published", "applied", "duplicates", "rejected", "staleness", "bytes_sent", "bytes_received", "wait_s", "last", "done", "settled", "bytes_by_codec", "at", "delay_s", "fastest_delay_s", "later_updates", "staleness_now", "staleness_predicted", "lag", "sketch", "sketch_at", "made_at", "neighbours", "catching_up", "warnings", "steps", "stopped", "first_batches", "meeting")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_S_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    TEST_LOSS_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_LOSS_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_ACCURACY_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    BYTES_BY_CODEC_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    DELAY_S_FIELD_NUMBER: _ClassVar[int]
    FASTEST_DELAY_S_FIELD_NUMBER: _ClassVar[int]
    LATER_UPDATES_FIELD_NUMBER: _ClassVar[int]
    STALENESS_NOW_FIELD_NUMBER: _ClassVar[int]
    STALENESS_PREDICTED_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    SKETCH_FIELD_NUMBER: _ClassVar[int]
    SKETCH_AT_FIELD_NUMBER: _ClassVar[int]
    MADE_AT_FIELD_NUMBER: _ClassVar[int]
    NEIGHBOURS_FIELD_NUMBER: _ClassVar[int]
    CATCHING_UP_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    FIRST_BATCHES_FIELD_NUMBER: _ClassVar[int]
    MEETING_FIELD_NUMBER: _ClassVar[int]
    name: str
    epoch: int
    version: int
    samples: int
    samples_per_s: float
    step_s: float
    loss: float
    test_loss: float
    accuracy: float
    validation_loss: float
    validation_accuracy: float
    published: int
    applied: int
    duplicates: int
    rejected: _containers.RepeatedCompositeFieldContainer[Count]
    staleness: Staleness
    bytes_sent: int
    bytes_received: int
    wait_s: float
    last: int
    done: bool
    settled: bool
    bytes_by_codec: _containers.RepeatedCompositeFieldContainer[Count]
    at: float
    delay_s: float
    fastest_delay_s: float
    later_updates: float
    staleness_now: float
    staleness_predicted: float
    lag: int
    sketch: bytes
    sketch_at: int
    made_at: _containers.RepeatedScalarFieldContainer[float]
    neighbours: _containers.RepeatedCompositeFieldContainer[Neighbour]
    catching_up: int
    warnings: _containers.RepeatedCompositeFieldContainer[LearningWarning]
    steps: int
    stopped: bool
    first_batches: _containers.RepeatedScalarFieldContainer[int]
    meeting: str
    def __init__(self, name: _Optional[str] = ..., epoch: _Optional[int] = ..., version: _Optional[int] = ..., samples: _Optional[int] = ..., samples_per_s: _Optional[float] = ..., step_s: _Optional[float] = ..., loss: _Optional[float] = ..., test_loss: _Optional[float] = ..., accuracy: _Optional[float] = ..., validation_loss: _Optional[float] = ..., validation_accuracy: _Optional[float] = ..., published: _Optional[int] = ..., applied: _Optional[int] = ..., duplicates: _Optional[int] = ..., rejected: _Optional[_Iterable[_Union[Count, _Mapping]]] = ..., staleness: _Optional[_Union[Staleness, _Mapping]] = ..., bytes_sent: _Optional[int] = ..., bytes_received: _Optional[int] = ..., wait_s: _Optional[float] = ..., last: _Optional[int] = ..., done: bool = ..., settled: bool = ..., bytes_by_codec: _Optional[_Iterable[_Union[Count, _Mapping]]] = ..., at: _Optional[float] = ..., delay_s: _Optional[float] = ..., fastest_delay_s: _Optional[float] = ..., later_updates: _Optional[float] = ..., staleness_now: _Optional[float] = ..., staleness_predicted: _Optional[float] = ..., lag: _Optional[int] = ..., sketch: _Optional[bytes] = ..., sketch_at: _Optional[int] = ..., made_at: _Optional[_Iterable[float]] = ..., neighbours: _Optional[_Iterable[_Union[Neighbour, _Mapping]]] = ..., catching_up: _Optional[int] = ..., warnings: _Optional[_Iterable[_Union[LearningWarning, _Mapping]]] = ..., steps: _Optional[int] = ..., stopped: bool = ..., first_batches: _Optional[_Iterable[int]] = ..., meeting: _Optional[str] = ...) -> None: ...

class LearningWarning(_message.Message):
    __slots__ = ("reason", "text")
    REASON_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    reason: str
    text: str
    def __init__(self, reason: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class Neighbour(_message.Message):
    __slots__ = ("name", "sent_bytes", "applied", "staleness")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    name: str
    sent_bytes: int
    applied: int
    staleness: int
    def __init__(self, name: _Optional[str] = ..., sent_bytes: _Optional[int] = ..., applied: _Optional[int] = ..., staleness: _Optional[int] = ...) -> None: ...

class Count(_message.Message):
    __slots__ = ("reason", "count")
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    reason: str
    count: int
    def __init__(self, reason: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class Staleness(_message.Message):
    __slots__ = ("count", "mean", "p50", "p99", "max")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    P50_FIELD_NUMBER: _ClassVar[int]
    P99_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    count: int
    mean: float
    p50: int
    p99: int
    max: int
    def __init__(self, count: _Optional[int] = ..., mean: _Optional[float] = ..., p50: _Optional[int] = ..., p99: _Optional[int] = ..., max: _Optional[int] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Description(_message.Message):
    __slots__ = ("version", "instance", "run", "swarm", "name", "epoch", "address", "synced", "schema", "tensors", "members", "clock", "progress", "rule", "folds", "arrived")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    SWARM_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SYNCED_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    FOLDS_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_FIELD_NUMBER: _ClassVar[int]
    version: int
    instance: str
    run: str
    swarm: str
    name: str
    epoch: int
    address: str
    synced: bool
    schema: str
    tensors: _containers.RepeatedCompositeFieldContainer[TensorDescription]
    members: _containers.RepeatedCompositeFieldContainer[MemberDescription]
    clock: bytes
    progress: _containers.RepeatedCompositeFieldContainer[Progress]
    rule: str
    folds: _containers.RepeatedCompositeFieldContainer[Fold]
    arrived: bytes
    def __init__(self, version: _Optional[int] = ..., instance: _Optional[str] = ..., run: _Optional[str] = ..., swarm: _Optional[str] = ..., name: _Optional[str] = ..., epoch: _Optional[int] = ..., address: _Optional[str] = ..., synced: bool = ..., schema: _Optional[str] = ..., tensors: _Optional[_Iterable[_Union[TensorDescription, _Mapping]]] = ..., members: _Optional[_Iterable[_Union[MemberDescription, _Mapping]]] = ..., clock: _Optional[bytes] = ..., progress: _Optional[_Iterable[_Union[Progress, _Mapping]]] = ..., rule: _Optional[str] = ..., folds: _Optional[_Iterable[_Union[Fold, _Mapping]]] = ..., arrived: _Optional[bytes] = ...) -> None: ...

class TensorDescription(_message.Message):
    __slots__ = ("name", "dtype", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class MemberDescription(_message.Message):
    __slots__ = ("name", "epoch", "state", "address", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    epoch: int
    state: State
    address: str
    reason: str
    def __init__(self, name: _Optional[str] = ..., epoch: _Optional[int] = ..., state: _Optional[_Union[State, str]] = ..., address: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

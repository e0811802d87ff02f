from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Ask(_message.Message):
    __slots__ = ("hello", "pull", "claims", "back", "spent", "ping", "bye", "forgone")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    BACK_FIELD_NUMBER: _ClassVar[int]
    SPENT_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    BYE_FIELD_NUMBER: _ClassVar[int]
    FORGONE_FIELD_NUMBER: _ClassVar[int]
    hello: FeedHello
    pull: int
    claims: _containers.RepeatedCompositeFieldContainer[Claim]
    back: _containers.RepeatedScalarFieldContainer[int]
    spent: _containers.RepeatedScalarFieldContainer[int]
    ping: int
    bye: bool
    forgone: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, hello: _Optional[_Union[FeedHello, _Mapping]] = ..., pull: _Optional[int] = ..., claims: _Optional[_Iterable[_Union[Claim, _Mapping]]] = ..., back: _Optional[_Iterable[int]] = ..., spent: _Optional[_Iterable[int]] = ..., ping: _Optional[int] = ..., bye: bool = ..., forgone: _Optional[_Iterable[int]] = ...) -> None: ...

class FeedHello(_message.Message):
    __slots__ = ("version", "run", "swarm", "name", "epoch", "address", "seq", "claims")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    SWARM_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    version: int
    run: str
    swarm: str
    name: str
    epoch: int
    address: str
    seq: int
    claims: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, version: _Optional[int] = ..., run: _Optional[str] = ..., swarm: _Optional[str] = ..., name: _Optional[str] = ..., epoch: _Optional[int] = ..., address: _Optional[str] = ..., seq: _Optional[int] = ..., claims: _Optional[_Iterable[int]] = ...) -> None: ...

class Claim(_message.Message):
    __slots__ = ("batch", "seq")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    batch: int
    seq: int
    def __init__(self, batch: _Optional[int] = ..., seq: _Optional[int] = ...) -> None: ...

class Deal(_message.Message):
    __slots__ = ("welcome", "piece", "confirmed", "denied", "pong", "end", "raw", "taken", "checksum")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    DENIED_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    welcome: FeedWelcome
    piece: Piece
    confirmed: _containers.RepeatedScalarFieldContainer[int]
    denied: _containers.RepeatedScalarFieldContainer[int]
    pong: int
    end: End
    raw: bytes
    taken: _containers.RepeatedScalarFieldContainer[int]
    checksum: int
    def __init__(self, welcome: _Optional[_Union[FeedWelcome, _Mapping]] = ..., piece: _Optional[_Union[Piece, _Mapping]] = ..., confirmed: _Optional[_Iterable[int]] = ..., denied: _Optional[_Iterable[int]] = ..., pong: _Optional[int] = ..., end: _Optional[_Union[End, _Mapping]] = ..., raw: _Optional[bytes] = ..., taken: _Optional[_Iterable[int]] = ..., checksum: _Optional[int] = ...) -> None: ...

class FeedWelcome(_message.Message):
    __slots__ = ("version", "run", "instance", "batches", "samples", "tensors")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    version: int
    run: str
    instance: str
    batches: int
    samples: int
    tensors: _containers.RepeatedCompositeFieldContainer[BatchTensor]
    def __init__(self, version: _Optional[int] = ..., run: _Optional[str] = ..., instance: _Optional[str] = ..., batches: _Optional[int] = ..., samples: _Optional[int] = ..., tensors: _Optional[_Iterable[_Union[BatchTensor, _Mapping]]] = ...) -> None: ...

class BatchTensor(_message.Message):
    __slots__ = ("dtype", "shape")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("batch", "offset", "number", "more")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    batch: int
    offset: int
    number: int
    more: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, batch: _Optional[int] = ..., offset: _Optional[int] = ..., number: _Optional[int] = ..., more: _Optional[_Iterable[int]] = ...) -> None: ...

class End(_message.Message):
    __slots__ = ("batches", "consumed", "dealt_again", "spent", "repeated_batches")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    DEALT_AGAIN_FIELD_NUMBER: _ClassVar[int]
    SPENT_FIELD_NUMBER: _ClassVar[int]
    REPEATED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    batches: int
    consumed: int
    dealt_again: int
    spent: int
    repeated_batches: int
    def __init__(self, batches: _Optional[int] = ..., consumed: _Optional[int] = ..., dealt_again: _Optional[int] = ..., spent: _Optional[int] = ..., repeated_batches: _Optional[int] = ...) -> None: ...

"""Messages as bytes and back: encoder and decoder are made from the class, once, at import.

A message is a frozen class whose fields carry their limits and stand in its .proto message, too
(`edge/net/shapes.py`). So a new field is a line in the class and one in the .proto.

Whatever is wrong with bytes from the network comes out as `RemoteProtocolError`, which names the
field, or as `SchemaMismatch` (another version), and as nothing else; lengths are looked at before
memory is spent. A field in a field is named with both: `promise.held.epoch`. What may be there or
not, as the hello of an `Ask`, is a message of its own: `hello.epoch`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Protocol, TypeVar, get_args

from google.protobuf.message import DecodeError, Message

from murmurate.core.values.limits import Check
from murmurate.edge.net.shapes import Write, shape_of
from murmurate.errors import (
    ChecksumMismatch,
    LocalProtocolError,
    RemoteProtocolError,
    SchemaMismatch,
)

PROTOCOL_VERSION = 1

M = TypeVar("M", bound=Message)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OurVersion:
    """The version this side speaks; whoever speaks another is told both."""

    def check(self, field: str) -> Check:
        said_in = field.removesuffix(".version")

        def checked(theirs: int) -> int:
            if theirs == PROTOCOL_VERSION:
                return theirs
            raise SchemaMismatch(
                f"{said_in}: the other side speaks version {theirs} of the protocol,"
                f" this side version {PROTOCOL_VERSION}"
            )

        return checked


Version = Annotated[int, OurVersion()]


class Codec(Generic[T]):
    """Encoder and decoder of one class of messages."""

    encode: Callable[[T], bytes]
    """Its bytes; a `LocalProtocolError` when it cannot be said or is too large."""
    decode: Callable[[bytes | memoryview], T]
    """The checked message."""
    kinds: frozenset[str]
    """The names of all .proto messages in it."""

    def __init__(
        self,
        said: type[T],
        kind: type[Message],
        path: str,
        *,
        bytes_max: int,
        check: Callable[[T], None] | None = None,
    ) -> None:
        """`check` looks at what lies between the fields; it raises as the limits do."""
        shape = shape_of(said, kind.DESCRIPTOR, path)
        self.kinds = shape.kinds
        self.encode = _encoder(path, kind, shape.write, bytes_max)
        self.decode = _decoder(path, kind, shape.read, bytes_max, check)


class HasRaw(Protocol):
    """A message that carries bytes of a tensor, and a CRC-32 of them: who encodes it counts it, and
    who decodes it looks at it, so that no piece is without."""

    @property
    def raw(self) -> bytes | memoryview: ...

    @property
    def checksum(self) -> int: ...


R = TypeVar("R", bound=HasRaw)


class RawCodec(Codec[R]):
    """The same of a message with raw bytes, which are copied once on their way out."""

    def __init__(
        self,
        said: type[R],
        kind: type[Message],
        path: str,
        *,
        rest_bytes_max: int,
        raw_bytes_max: int,
        check: Callable[[R], None] | None = None,
    ) -> None:
        shape = shape_of(said, kind.DESCRIPTOR, path, unwritten=("raw", "checksum"))
        self.kinds = shape.kinds

        def check_all(message: R) -> None:
            if check is not None:
                check(message)
            if (crc := zlib.crc32(message.raw)) != message.checksum:
                problem = f"{crc:08x} of what arrived, not {message.checksum:08x}"
                raise ChecksumMismatch(f"{path}.checksum", problem)

        self.decode = _decoder(path, kind, shape.read, rest_bytes_max + raw_bytes_max, check_all)
        encode_rest = _encoder(path, kind, shape.write, rest_bytes_max, " besides raw")
        fields = kind.DESCRIPTOR.fields_by_name
        tag = bytes((fields["raw"].number << 3 | 2,))
        crc_tag = bytes((fields["checksum"].number << 3 | 5,))

        def encode(message: R) -> bytes:
            rest, raw = encode_rest(message), message.raw
            if not raw:
                return rest
            if len(raw) > raw_bytes_max:
                raise LocalProtocolError(f"{path}: {len(raw)} raw bytes, at most {raw_bytes_max}")
            crc = zlib.crc32(raw).to_bytes(4, "little")
            return b"".join((rest, crc_tag, crc, tag, varint(len(raw)), raw))

        self.encode = encode


class OneOfCodec(Generic[T]):
    """Encoder and decoder of a .proto message that holds one of several: one field for each.

    A class `PingRequest` is the field `ping_request`, and what is refused in it begins so.
    """

    encode: Callable[[T], bytes]
    decode: Callable[[bytes | memoryview], T]
    kinds: frozenset[str]

    def __init__(self, said: Any, kind: type[Message], path: str, *, bytes_max: int) -> None:
        [oneof] = kind.DESCRIPTOR.oneofs
        classes = {_snake_case(each.__name__): each for each in get_args(said)}
        if wrong := classes.keys() ^ {field.name for field in oneof.fields}:
            raise TypeError(f"{path}: {', '.join(sorted(wrong))}")
        shapes = {
            field.name: shape_of(classes[field.name], field.message_type, field.name)
            for field in oneof.fields
        }
        whole = frozenset({kind.DESCRIPTOR.full_name})
        self.kinds = whole.union(*(shape.kinds for shape in shapes.values()))
        writes = {classes[name]: (name, shape.write) for name, shape in shapes.items()}
        reads = {name: shape.read for name, shape in shapes.items()}
        which: str = oneof.name

        def encode(message: T) -> bytes:
            name, write = writes[type(message)]
            try:
                data: bytes = kind(**{name: write(message)}).SerializeToString()
            except (ValueError, TypeError, KeyError) as error:
                raise LocalProtocolError(f"{name}: {error}") from error
            if len(data) > bytes_max:
                raise LocalProtocolError(f"{name}: {len(data)} bytes, at most {bytes_max}")
            return data

        def decode(data: bytes | memoryview) -> T:
            m = parsed(path, kind, data, bytes_max)
            name = m.WhichOneof(which)
            if name is None:
                raise RemoteProtocolError(path, "of no kind that is known here")
            message: T = reads[name](getattr(m, name))
            return message

        self.encode, self.decode = encode, decode


def _encoder(
    path: str, kind: type[Message], write: Write, bytes_max: int, beside: str = ""
) -> Callable[[Any], bytes]:
    def encode(message: Any) -> bytes:
        try:
            data: bytes = kind(**write(message)).SerializeToString()
        except (ValueError, TypeError, KeyError) as error:
            raise LocalProtocolError(f"{path}: {error}") from error
        if len(data) > bytes_max:
            raise LocalProtocolError(f"{path}: {len(data)} bytes{beside}, at most {bytes_max}")
        return data

    return encode


def _decoder(
    path: str,
    kind: type[Message],
    read: Check,
    bytes_max: int,
    check: Callable[[Any], None] | None = None,
) -> Callable[[bytes | memoryview], Any]:
    def decode(data: bytes | memoryview) -> Any:
        message = read(parsed(path, kind, data, bytes_max))
        if check is not None:
            check(message)
        return message

    return decode


def parsed(field: str, kind: type[M], data: bytes | memoryview, bytes_max: int) -> M:
    """The protobuf message in these bytes."""
    if len(data) > bytes_max:
        raise RemoteProtocolError(field, f"{len(data)} bytes, at most {bytes_max}")
    try:
        message: M = kind.FromString(bytes(data))
    except (DecodeError, ValueError, RecursionError):  # the last two: protobuf without its C part
        raise RemoteProtocolError(field, f"not a {kind.__name__}") from None
    return message


def varint(value: int) -> bytes:
    """A number as protobuf has it: seven bits in each byte, the lowest first."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()

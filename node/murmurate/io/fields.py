"""Checks of single fields that came from a stranger; each names the field it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from murmurate.core.clock import Clock, Limits, name_problem
from murmurate.core.runs import SEQ_MAX
from murmurate.errors import RemoteProtocolError, SchemaMismatch

PROTOCOL_VERSION = 1
NAME_BYTES_MAX = Limits().name_bytes_max
TEXT_BYTES_MAX = 1024
"""Addresses, reasons, names of tensors."""
STATE_NAMES = ("", "alive", "suspect", "dead", "left")
"""By number of the enum; the same words as in core/message.py, which would import torch."""

M = TypeVar("M", bound=Message)
T = TypeVar("T")


def parsed(field: str, kind: type[M], data: bytes | memoryview, bytes_max: int) -> M:
    """The protobuf message in these bytes."""
    if len(data) > bytes_max:
        raise RemoteProtocolError(field, f"{len(data)} bytes, at most {bytes_max}")
    message: M = kind()
    try:
        message.MergeFromString(bytes(data))
    except (DecodeError, ValueError, RecursionError):  # the last two: protobuf without its C part
        raise RemoteProtocolError(field, f"not a {kind.__name__}") from None
    return message


def number(field: str, value: int, least: int = 0, most: int = SEQ_MAX) -> int:
    if not least <= value <= most:
        raise RemoteProtocolError(field, f"{value}, expected {least} to {most}")
    return value


def name(field: str, value: str) -> str:
    """A name of a peer, a run, a reason: printable, not empty."""
    if not value:
        raise RemoteProtocolError(field, "empty")
    return text(field, value, NAME_BYTES_MAX)


def text(field: str, value: str, bytes_max: int = TEXT_BYTES_MAX) -> str:
    """Something printable in one line; it may be empty."""
    if len(value) > bytes_max:  # said without the value, which may be long
        raise RemoteProtocolError(field, f"{len(value)} characters, at most {bytes_max} bytes")
    if value and (problem := name_problem(value, bytes_max)):
        raise RemoteProtocolError(field, problem)
    return value


def few(field: str, items: Sequence[T], most: int) -> Sequence[T]:
    if len(items) > most:
        raise RemoteProtocolError(field, f"{len(items)}, at most {most}")
    return items


def state(field: str, value: int) -> str:
    if not 0 < value < len(STATE_NAMES):
        raise RemoteProtocolError(field, f"{value}, expected 1 to {len(STATE_NAMES) - 1}")
    return STATE_NAMES[value]


def clock(field: str, data: bytes) -> Clock:
    try:
        return Clock.from_bytes(data)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"{field}: {error.field}", error.problem) from None


def version(field: str, theirs: int) -> int:
    if theirs != PROTOCOL_VERSION:
        raise SchemaMismatch(
            f"{field}: the other side speaks version {theirs} of the protocol,"
            f" this side version {PROTOCOL_VERSION}"
        )
    return theirs

"""What a node must not forget from one life to the next: a small file, durable before it counts.

Its name, its swarm, the epochs it may have used, whom it met, and what it promised in votes. A
member that votes and forgets what it promised could let two different generations be decided; so
votes count from this memory alone, which is numbered.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from murmurate.core.forgetting.vow import Vow
from murmurate.core.message import Ballot, Generation
from murmurate.edge.disk import written_by
from murmurate.errors import CheckpointError, MurmurateError

BYTES_MAX = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """All of it."""

    run: str
    rule: str
    schema: str
    asked: str
    """The name it was asked to take; `name` is the one it has."""
    name: str
    swarm: str
    epoch: int
    """No life had a higher one."""
    void_below: int = 0
    """Checkpoints of earlier lives than this are void: the others had voted that life out."""
    since: int = 0
    """The first life of this memory."""
    vow: Vow | None = None
    history: tuple[Generation, ...] = ()
    met: tuple[str, ...] = ()
    """Members that were there and not on the roster yet."""


def to_bytes(memory: NodeIdentity) -> bytes:
    """A line of JSON, and one with its digest."""
    fields: dict[str, Any] = written_by.mark()
    fields |= {name: getattr(memory, name) for name in NodeIdentity.__slots__}
    fields["vow"] = None if memory.vow is None else _vow_to_json(memory.vow)
    fields["history"] = [generation_to_json(each) for each in memory.history]
    text = json.dumps(fields).encode()
    return text + b"\n" + _digest(text) + b"\n"


def from_bytes(data: bytes, where: str) -> NodeIdentity:
    """`CheckpointError`: it cannot be trusted."""
    text, _, rest = data.partition(b"\n")
    if rest != _digest(text) + b"\n":
        raise CheckpointError(
            f"{where}: damaged, and with it what this node has promised in votes; start it in"
            " another folder, it then joins as one that remembers nothing"
        )
    try:
        fields = json.loads(text)
        written_by.check(fields, where)
        del fields["format"]
        fields.pop("written_by", None)  # not in files of earlier versions
        vow = fields.pop("vow")
        history = fields.pop("history")
        met = fields.pop("met", [])  # not in files of earlier versions
        if not all(isinstance(name, str) for name in met):
            raise TypeError("met has what is no name")
        for name in ("run", "rule", "schema", "asked", "name", "swarm"):
            if not isinstance(fields[name], str):
                raise TypeError(f"{name} is no text")
        fields.setdefault("since", 0)
        for name in ("epoch", "void_below", "since"):
            if not isinstance(fields[name], int):
                raise TypeError(f"{name} is no number")
        return NodeIdentity(
            vow=None if vow is None else _vow_from_json(vow),
            history=tuple(generation_from_json(each) for each in history),
            met=tuple(met),
            **fields,
        )
    except (KeyError, TypeError, ValueError, AttributeError, MurmurateError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{where}: not the memory of a node: {error}") from None


def generation_to_json(generation: Generation) -> dict[str, Any]:
    return asdict(generation)


def generation_from_json(value: Any) -> Generation:
    """Generations check themselves."""
    return Generation(
        int(value["number"]),
        tuple(str(name) for name in value["roster"]),
        tuple(
            ((str(key[0]), int(key[1])), tuple(int(n) for n in runs))
            for key, runs in value["folds"]
        ),
        tuple(str(name) for name in value["evicted"]),
        tuple(int(life) for life in value.get("memories", ())),
    )


def _vow_to_json(vow: Vow) -> dict[str, Any]:
    return asdict(vow)


def _vow_from_json(value: Any) -> Vow:
    accepted = value["accepted"]
    promised = _ballot(value["promised"])
    if promised is None:
        raise ValueError("a vow without a ballot")
    return Vow(
        int(value["number"]),
        promised,
        tuple(generation_from_json(each) for each in value["history"]),
        _ballot(value["accepted_ballot"]),
        None if accepted is None else generation_from_json(accepted),
    )


def _ballot(value: Any) -> Ballot | None:
    return None if value is None else (int(value[0]), str(value[1]))


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=32).hexdigest().encode()

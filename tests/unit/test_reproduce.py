"""`murmurate reproduce`: what a paper says beside what is found; nothing is left unmarked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from murmurate.programs.cli.main import main
from murmurate.study.lab.page import Line, chart
from murmurate.study.lab.relief import relief
from murmurate.study.race import up_options
from murmurate.study.reproduce import paper_002, paper_003, sparse_convex, stale_vectors
from murmurate.study.reproduce.claim import (
    AGREES,
    DIFFERS,
    NOT_BUILT,
    NOT_RUN,
    Effort,
    PaperStudy,
)
from murmurate.study.reproduce.hub_cells import HubCell, HubCells
from murmurate.study.reproduce.paper_002_tables import tables
from murmurate.study.reproduce.training import NotHere
from murmurate.workloads.word2vec import rows_of


def reproduced(paper: str, folder: Path) -> dict[str, Any]:
    assert main(["reproduce", paper, "--quick", "--out", str(folder)]) == 0
    found: dict[str, Any] = json.loads((folder / f"{paper}.json").read_text(encoding="utf-8"))
    for claim in found["claims"]:
        assert claim["verdict"] in (AGREES, DIFFERS, NOT_BUILT, NOT_RUN)
        assert claim["why"] or claim["verdict"] == AGREES, "one that does not agree is explained"
        assert claim["ours"] or claim["verdict"] in (NOT_BUILT, NOT_RUN)
    page = (folder / f"{paper}.html").read_text(encoding="utf-8")
    assert "src=" not in page
    assert "href=" not in page
    return found


def test_004_is_within_a_hundredth_of_the_exact_formula(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = reproduced("004", tmp_path)
    assert [row["n"] for row in found["figures"]["fig_1"]] == list(range(10, 21))
    for row in found["figures"]["fig_1"]:
        assert row["measured"] == pytest.approx(row["exact"], abs=0.01)
        assert row["paper"] - row["exact"] == pytest.approx(0.04)
    again = reproduced("004", tmp_path / "again")
    assert again == found
    one, two = found["figures"]["fig_3"]["0.1"]
    assert one < two / 10
    assert (tmp_path / "004.html").read_text(encoding="utf-8").count("<svg") == 3
    assert "differs" in capsys.readouterr().out


def test_002_and_003_are_held_against_their_own_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their trainings are left out: here as if there were no hub."""

    def nothing(*_: object) -> None:
        raise NotHere("no hub")

    monkeypatch.setattr(paper_002, "tables", nothing)
    for name in TRAINED_003:
        monkeypatch.setattr(paper_003, name, named(nothing, name))
    ours = {claim["what"]: claim for claim in reproduced("002", tmp_path)["claims"]}
    lost = next(claim for what, claim in ours.items() if what.startswith("dataset split minus"))
    assert lost["ours"] == "27.88 ± 8.20"
    assert lost["verdict"] == AGREES
    better = next(claim for what, claim in ours.items() if "λ = 2" in what)
    assert better["ours"].startswith("-7.9 points; improved cells only +9.5")
    assert better["verdict"] == DIFFERS
    found = reproduced("003", tmp_path)["claims"]
    ratios = [claim for claim in found if "CC ratio of" in claim["what"]]
    assert [claim["verdict"] for claim in ratios] == [AGREES, DIFFERS, AGREES]
    assert sum(claim["verdict"] == NOT_BUILT for claim in found) == len(TRAINED_003)


TRAINED_003 = (
    "solvers", "workers", "rates", "large_batch", "deep_and_wide", "conclusion", "scaling"
)  # fmt: skip


def named(act: Callable[..., None], name: str) -> Callable[..., None]:
    def other(*given: object) -> None:
        act(*given)

    other.__name__ = name
    return other


@pytest.mark.slow
@pytest.mark.parametrize("paper", ["002", "003"])
def test_what_is_trained_of_002_and_003(paper: str, tmp_path: Path) -> None:
    """Half a minute to a minute of processor time each."""
    found = reproduced(paper, tmp_path)
    missing = [claim["what"] for claim in found["claims"] if claim["verdict"] == NOT_BUILT]
    assert missing == (["Hogwild! among them"] if paper == "003" else [])
    by = {claim["what"]: claim for claim in found["claims"]}
    if paper == "002":
        split = next(c for what, c in by.items() if what.startswith("one slow worker, each ends"))
        assert split["verdict"] == AGREES
        assert (tmp_path / "002.html").read_text(encoding="utf-8").count("<table") == 6
    else:
        assert len(found["figures"]["conclusion"]) == 4
        assert len(found["figures"]["solvers"]) == 7


@pytest.mark.slow
@pytest.mark.parametrize("paper", ["000", "001"])
def test_what_is_trained_of_000_and_001(paper: str, tmp_path: Path) -> None:
    """As long as the others; with this each quick form is run by a test."""
    by = {claim["where"]: claim for claim in reproduced(paper, tmp_path)["claims"]}
    if paper == "000":
        assert by["Section 2"]["verdict"] == AGREES
        assert by["Section 2"]["ours"].startswith("5")
    else:
        assert by["Control"]["verdict"] == AGREES


@pytest.mark.parametrize("who", ["all", "one", "gaussian"])
@pytest.mark.parametrize("rule", ["async", "sync"])
def test_each_kind_of_cell_is_something_up_can_train(who: str, rule: str) -> None:
    for dc in (0.0, 2.0):
        cell = HubCell(workers=5, split="labels", delay_ms=90, who=who, dc_lambda=dc, rule=rule)
        up_options.check(["--virtual", *cell.options(6400, 0)])


def test_a_cell_is_trained_once_and_counts_nc_as_ten() -> None:
    calls = []

    def train(*options: str) -> dict[str, Any]:
        calls.append(options)
        return {"accuracy_mean": 0.42, "nc": True}

    cells = HubCells(6400, [0], train)
    one = HubCell(workers=2, momentum=0.99)
    assert cells.get(one) is cells.get(HubCell(workers=2, momentum=0.99))
    assert len(calls) == 1
    assert (str(cells.get(one)), cells.get(one).counted) == ("NC", 10.0)
    assert "--own-samples=3200" in calls[0]
    assert "--samples=6400" in HubCell(workers=2, own=False).options(6400, 0)


def test_each_table_of_002_has_all_its_rows(tmp_path: Path) -> None:
    """Trained by nobody: momentum 0.99 comes to nothing, one slow worker costs split labels 30
    points if each ends alone, and compensation costs another 5."""

    def train(*options: str) -> dict[str, Any]:
        lost = 30 * ("--split=labels" in options and "--slow=node-0=0.09" in options)
        lost = lost if any(each.startswith("--own") for each in options) else 0
        lost += 5 * any(each.startswith("--hub-dc") for each in options)
        classes = [None, *(k / 10 for k in range(1, 10))]
        whole = {"role": "coordinator", "precision_by_class": classes}
        whole |= {"accuracy_by_class": classes, "f1_by_class": classes}
        gone = "--hub-momentum=0.99" in options
        return {"accuracy_mean": 0.8 - lost / 100, "nc": gone, "nodes": [whole]}

    made = PaperStudy(paper="002", title="")
    tables(made, Effort(), HubCells(6400, [0, 1], train))
    rows = {
        name.split(":")[0]: len(each)
        for name, each in made.figures.items()
        if name.endswith(": workers, split")
    }
    assert rows["Table II"] == 2 + 3 + 3 + 1
    assert rows["Table III"] == 3 * 3
    assert rows["Table IV"] == 3 * 3
    assert rows["Tables V to VII"] == 4 * 2 * 3
    ours = {(claim.where, claim.what): claim for claim in made.claims}
    budget = next(c for (_, what), c in ours.items() if "one budget for all, 90 ms" in what)
    assert budget.ours == "+0.0 ± 0.0 points (own epochs: +30.0 ± 0.0 points)"
    assert "100% of the loss is the stop rule's" in budget.why
    large = next(c for (_, what), c in ours.items() if "0.99 with 5 and 10" in what)
    assert large.ours.startswith("12 of 12 cells NC or below 25 %: 10 to 10 %, NC in 24 of 24 runs")
    assert large.verdict == AGREES
    on = next(c for (_, what), c in ours.items() if "really on, λ = 5" in what)
    assert on.ours == "-5.0 ± 0.0 points"
    gaussian = next(c for (_, what), c in ours.items() if "momentum up to 0.9" in what)
    assert gaussian.ours == "+0.0 ± 0.0 points"


def test_proposition_1_bounds_the_steps_and_asks_for_more_with_the_lag() -> None:
    none, some = (sparse_convex.run(lag, epsilon=0.01, seed=0) for lag in (0, 1))
    for each in (none, some):
        assert each.steps is not None
        assert 0 < each.steps < each.bound
        assert 0 < each.delta < 1
        assert each.delta <= each.rho <= 1
    assert some.bound > 3 * none.bound
    assert some.rate < none.rate / 3


def test_words_that_come_often_are_drawn_less_often(tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    rare = [f"word{number}" for number in range(3000)]
    file.write_text(" ".join(f"the {word}" for word in rare), encoding="utf-8")
    [row] = rows_of("the").tolist()
    kept = torch.cat(
        (stale_vectors.Thinned(str(file))._train, stale_vectors.Thinned(str(file))._test)
    )
    assert int((kept == row).sum()) < 300
    assert int((kept != row).sum()) > 2500


def test_a_relief_has_a_way_for_each_run() -> None:
    made = relief(
        "r <1>", [0, 1], [0, 1], [[1.0, 2.0], [float("nan"), 4.0]], {"a": [[0, 0], [1, 1]]}
    )
    assert made.count("<polyline") == 2
    assert "r &lt;1&gt;" in made
    assert relief("r", [0], [0], [[1.0]], {}) == ""


def test_a_text_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--text", str(tmp_path / "none.txt"), "--out", str(tmp_path)]
    assert main(["reproduce", "000", "--quick", *options]) == 2
    assert "there is no such file" in capsys.readouterr().err


def test_a_chart_leaves_out_what_cannot_be_drawn() -> None:
    lines = [Line(name="a <b>", points=[(0.0, 1.0), (1.0, float("nan")), (2.0, 3.0)])]
    made = chart("t", lines, x="x", y="y")
    assert made.count("<circle") == 2
    assert "a &lt;b&gt;" in made
    assert chart("t", [Line(name="none", points=[])], x="x", y="y") == ""
    assert chart("t", lines, x="x", y="y", log_x=True).count("<circle") == 1


def test_ticks_are_round_and_can_be_told_apart() -> None:
    """Losses that differ in the fourth digit; a logarithmic axis of 4 to 64 models."""
    close = [(float(k), 1.6088 + k * 1e-4) for k in range(9)]
    made = chart("t", [Line(name="a", points=close)], x="x", y="y")
    for told in (">1.609<", ">1.6092<", ">1.6096<"):
        assert told in made
    models = [(4.0, 1.0), (16.0, 0.25), (64.0, 0.0625)]
    made = chart("t", [Line(name="a", points=models)], x="x", y="y", log_x=True, log_y=True)
    for told in (">4<", ">16<", ">64<", ">0.25<"):
        assert told in made
    falls = [(float(k), 2.0**-k) for k in range(12)]
    made = chart("t", [Line(name="a", points=falls)], x="x", y="y", log_y=True)
    for told in (">1<", ">0.1<", ">0.01<", ">0.001<"):
        assert told in made

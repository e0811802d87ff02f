"""`murmurate reproduce`: what a paper says beside what is found; nothing is left unmarked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from murmurate.programs.cli.main import main
from murmurate.study.lab.page import Line, chart
from murmurate.study.reproduce import paper_002
from murmurate.study.reproduce.claim import AGREES, DIFFERS, NOT_BUILT, NOT_RUN
from murmurate.study.reproduce.training import NotHere


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

    def nothing(*_: str) -> None:
        raise NotHere("no hub")

    monkeypatch.setattr(paper_002, "trained", nothing)
    ours = {claim["what"]: claim for claim in reproduced("002", tmp_path)["claims"]}
    lost = next(claim for what, claim in ours.items() if what.startswith("dataset split minus"))
    assert lost["ours"] == "27.88 ± 8.20"
    assert lost["verdict"] == AGREES
    better = next(claim for what, claim in ours.items() if "λ = 2" in what)
    assert better["ours"].startswith("-7.9 points; improved cells only +9.5")
    assert better["verdict"] == DIFFERS
    ratios = [c for c in reproduced("003", tmp_path)["claims"] if "CC ratio of" in c["what"]]
    assert [claim["verdict"] for claim in ratios] == [AGREES, DIFFERS, AGREES]


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

"""The command line: what a person types wrong gets one clear line and exit code 2."""

from __future__ import annotations

import pytest

from murmurate.programs.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sim", "--seeds", "5"], "is not A:B with A < B"),
        (["sim", "--seeds", "9:3"], "is not A:B with A < B"),
        (["sim", "--seed", "-1"], "is not a number from 0 on"),
        (["sim", "--seed", "x"], "is not a number from 0 on"),
        (["sim", "--nodes", "0"], "is not N or N:M"),
        (["sim", "--jobs", "0"], "is not a number from 1 on"),
        (["sim", "--scenario", "party"], "invalid choice"),
        (["sim", "--seed", "1", "--seeds", "0:5"], "not allowed with"),
        (["fly"], "invalid choice"),
        ([], "required"),
    ],
)
def test_a_wrong_flag_is_named(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sim", "--seed", "1", "--mutant", "frog"], "--mutant 'frog': one of no-dedupe"),
        (["sim", "--seed", "1", "--topology", "moebius"], "--topology 'moebius': one of full"),
        (["sim", "--scenario", "churn", "--nodes", "4"], "--nodes: --scenario churn takes only"),
    ],
)
def test_a_wrong_name_gets_the_list(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_the_mistakes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "--list-mutants"]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 12

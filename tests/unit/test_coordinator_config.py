"""What the coordinator is told, and what it says to what it cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from murmurate.errors import ConfigError
from murmurate.programs.cli.main import main
from murmurate_coordinator.config import KEYS, load
from murmurate_coordinator.names import RULES
from murmurate_coordinator.own_member import command, reachable
from murmurate_coordinator.solvers.table import SOLVERS


def test_defaults_and_what_beats_what(tmp_path: Path) -> None:
    file = tmp_path / "coordinator.toml"
    file.write_text('[coordinator]\nfounders = 3\nlisten = "127.0.0.1:0"\n[train]\nevery = 5\n')
    config = load(str(file), {"MURMURATE_TRAIN_EVERY": "7"}, {"train.rule": "lease"})
    assert (config.coordinator.founders, config.train.every, config.train.rule) == (3, 7, "lease")
    assert load(None, {}, {"coordinator.listen": "127.0.0.1:0"}).train.rule == "async"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[coordinator]\nfounders = 0", ":2: coordinator.founders = 0: expected a whole number"),
        ('[train]\nrule = "asink"', ":2: train.rule = 'asink': expected one of sync, once, async"),
        ("[coordinator]\nwidth = -1\ntrain = true", ":2: coordinator.width = -1: expected a num"),
        ("[coordinator]\nwidth = 2", ":2: coordinator.width = 2: only with train = true"),
        ("[coordinator]\nworkload = 'digits'", "unknown key; nearest: train.workload"),
        ("[node]\nname = 'a'", "[node]: unknown; the sections are [coordinator], [train]"),
        (
            "[coordinator]\nlisten = '0.0.0.0:7100'",
            "coordinator.listen = '0.0.0.0:7100': reachable from other machines",
        ),
        (
            "[metrics]\nlisten = '127.0.0.1:7100'\n[coordinator]\nlisten = '127.0.0.1:7100'",
            "metrics.listen = '127.0.0.1:7100': another port than coordinator.listen",
        ),
    ],
)
def test_a_wrong_configuration_is_named(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "coordinator.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(str(file))
    assert says in str(caught.value)


def test_check_config(capsys: pytest.CaptureFixture[str]) -> None:
    """Through the entry point, as a user would."""
    right = ["coordinator", "--check-config", "--listen", "127.0.0.1:0"]
    assert main(right) == 0
    assert main([*right, "--rule", "sometimes", "--every", "0"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    assert all(line.startswith("murmurate: --") for line in told)


def test_help_names_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["coordinator", "--help"])
    text = capsys.readouterr().out
    assert all(key.option in text for key in KEYS)


def test_its_own_member_is_a_node_like_any_other() -> None:
    given = {"coordinator.train": "true", "coordinator.width": "2"}
    config = load(None, {}, {**given, "coordinator.listen": "127.0.0.1:0"})
    words = command(config)[3:]
    assert json.dumps(words[:5]) == '["node", "--mode", "ist", "--coordinator", "-"]'
    assert "--width" in words
    assert reachable("0.0.0.0:7100") == "127.0.0.1:7100"
    assert reachable("[::]:7100") == "[::1]:7100"
    assert reachable("10.0.0.5:7100") == "10.0.0.5:7100"


def test_the_rules_are_those_that_there_are() -> None:
    assert RULES == tuple(SOLVERS) == ("sync", "once", "async", "lease", "fedavg")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"train.rule": "async"}, "pull with mode batches"),
        ({"coordinator.train": "true"}, "not with mode batches: no model is here"),
        ({"train.every": "4"}, "not with mode batches"),
        ({"hub.gradients": "2"}, "only with mode hub"),
    ],
)
def test_a_coordinator_that_deals_batches_has_no_model(
    options: dict[str, str], sentence: str
) -> None:
    assert load(None, {}, {"train.mode": "batches"}).train.rule == "pull"
    with pytest.raises(ConfigError, match=sentence):
        load(None, {}, {"train.mode": "batches", **options})

"""`murmurate plan`: what it predicts, held against training in virtual time, within 10 %."""

from __future__ import annotations

import json
from typing import Any

import pytest

from murmurate.errors import ConfigError
from murmurate.programs.cli.main import main
from murmurate.study.plan.advice import advice
from murmurate.study.plan.command import of_status, parse_peers
from murmurate.study.plan.prediction import Circumstances, Peers, gossip, hub, synchronous
from murmurate.study.race import up_options
from murmurate.study.virtual.synchronous import SynchronousMean
from murmurate.study.virtual.task import VirtualTraining
from murmurate.workloads import load

PARAMETERS = 1000
SECONDS = 60
SETTINGS: dict[str, dict[str, Any]] = {
    "equal": {"peers": [Peers(count=4)]},
    "four slow ones more": {"peers": [Peers(count=4), Peers(count=4, speed=0.25)]},
    "far apart": {"peers": [Peers(count=4)], "delay_s": 1.5},
    "folding costs": {"peers": [Peers(count=6)], "fold_s": 0.04},
    "links take a while": {"peers": [Peers(count=4)], "link_bytes_s": 60_000.0},
    "four steps in an update": {"peers": [Peers(count=4)], "every": 4},
}


def told(**more: Any) -> Circumstances:
    first: dict[str, Any] = {"step_s": 1.0, "batch_size": 8, "parameters": PARAMETERS}
    return Circumstances(**first | more)


def trained(now: Circumstances) -> dict[str, Any]:
    speeds = [f"--speed=node-{k}={speed}" for k, speed in enumerate(now.speeds)]
    more = [f"--link-bytes-s={now.link_bytes_s}"] if now.link_bytes_s else []
    return up_options.run(
        [
            *("--virtual", "--workload=synthetic:1000", "--rule=sum", f"--nodes={now.n}"),
            *(f"--batch-size={now.batch_size}", f"--seconds={SECONDS}", "--evaluate-s=0"),
            *(f"--fold-s={now.fold_s}", f"--delay-s={now.delay_s}", f"--every={now.every}"),
            *speeds,
            *more,
        ]
    )


@pytest.mark.parametrize("setting", SETTINGS)
def test_gossip_is_as_predicted(setting: str) -> None:
    now = told(**SETTINGS[setting])
    seen = trained(now)
    sizes = {row["bytes_sent"] / max(1, row["updates_published"]) for row in seen["nodes"]}
    one = max(sizes) / (now.n - 1)  # what this workload's update really has
    now = told(**SETTINGS[setting] | {"parameters": round(one / 4)})
    expected = gossip(now)
    assert seen["samples"] / SECONDS == pytest.approx(expected.samples_per_s, rel=0.1)
    published = sum(row["updates_published"] for row in seen["nodes"])
    assert published / SECONDS == pytest.approx(expected.updates_per_s, rel=0.1)
    assert expected.staleness is not None
    # The first second has nobody to be stale against: the law is of what comes after.
    assert seen["staleness"]["mean"] == pytest.approx(expected.staleness, rel=0.1)
    busiest = max(row["bytes_sent"] for row in seen["nodes"])
    assert busiest / SECONDS == pytest.approx(expected.bytes_out_s, rel=0.1)


def test_in_step_is_as_predicted() -> None:
    now = told(peers=[Peers(count=3), Peers(count=1, speed=0.5)], delay_s=0.3)
    world = SynchronousMean(
        VirtualTraining(
            workload=load("synthetic:1000", batch_size=8),
            nodes=4,
            rule="synchronous",
            speeds={"node-3": 0.5},
            delay_s=0.3,
        )
    )
    world.events.run_until(SECONDS)
    assert world.samples() / SECONDS == pytest.approx(synchronous(now).samples_per_s, rel=0.1)


def test_a_hub_by_its_laws() -> None:
    now = told(peers=[Peers(count=10)], step_s=2.5, delay_s=0.5)
    assert hub(now).staleness == 9.0
    assert hub(now, k=10).staleness == pytest.approx(0.9)
    assert hub(now, k=10, pipelined=True).staleness == pytest.approx(1.36)
    assert hub(now, k=10, pipelined=True).updates_per_s == pytest.approx(10 / (10 * 2.5))
    full = hub(told(peers=[Peers(count=10)], step_s=0.1, fold_s=0.05))
    assert full.updates_per_s == pytest.approx(1 / 0.05)
    assert full.limit.startswith("the hub: folding")


HUBS: dict[str, dict[str, Any]] = {
    "equal": {"peers": [Peers(count=4)]},
    "one slow": {"peers": [Peers(count=3), Peers(count=1, speed=0.25)], "delay_s": 0.2},
    "folding is the limit": {"peers": [Peers(count=6)], "fold_s": 0.25},
}


@pytest.mark.parametrize("setting", HUBS)
@pytest.mark.parametrize("k", [1, 3])
def test_a_hub_is_as_predicted(setting: str, k: int) -> None:
    """In virtual time, by request and reply."""
    now = told(**HUBS[setting])
    expected = hub(now, k=k)
    rule = ["--rule=async"] if k == 1 else ["--rule=k-of-n", f"--hub-gradients={k}"]
    seen = up_options.run(
        [
            *("--virtual", "--mode=hub", "--workload=synthetic:1000", f"--nodes={now.n}"),
            *(f"--batch-size={now.batch_size}", f"--seconds={SECONDS}", "--evaluate-s=0"),
            *(f"--fold-s={now.fold_s}", f"--delay-s={now.delay_s}", *rule),
            *(f"--speed=node-{number}={speed}" for number, speed in enumerate(now.speeds)),
        ]
    )
    assert seen["samples"] / SECONDS == pytest.approx(expected.samples_per_s, rel=0.1)
    members = [row for row in seen["nodes"] if row["role"] == "member"]
    total = sum(row["staleness"]["mean"] * row["staleness"]["count"] for row in members)
    count = sum(row["staleness"]["count"] for row in members)
    assert total / count == pytest.approx(expected.staleness, rel=0.1)


def test_narrow_links_make_fewer_and_fuller_messages() -> None:
    now = told(peers=[Peers(count=4)], link_bytes_s=4000.0)
    found = gossip(now)
    assert found.limit.startswith("links")
    assert found.staleness is None
    assert found.samples_per_s == pytest.approx(32)
    assert found.bytes_out_s < 4000
    assert any("--codec" in sentence for sentence in advice(now))


@pytest.mark.parametrize(
    ("setting", "first"),
    [
        ({"peers": [Peers(count=4)]}, "mode allreduce"),
        (
            {"peers": [Peers(count=3), Peers(count=1, speed=0.1)]},
            "mode gossip, rule shared: speeds",
        ),
        ({"peers": [Peers(count=4)], "delay_s": 1.0}, "mode gossip, rule shared: the exchange"),
        ({"peers": [Peers(count=1)]}, "one peer"),
    ],
)
def test_what_is_recommended(setting: dict[str, Any], first: str) -> None:
    assert advice(told(**setting))[0].startswith(first)


def test_a_running_swarm_is_read_from_its_status() -> None:
    row = {"state": "alive", "delay_s": 0.2}
    status = {
        "parameters": 500,
        "members": [
            {**row, "samples_per_s": 64.0},
            {**row, "samples_per_s": 32.0, "delay_s": None},
            {**row, "samples_per_s": 99.0, "state": "dead"},
        ],
    }
    now = of_status(status, 32)
    assert now.speeds == [1.0, 0.5]
    assert (now.step_s, now.delay_s, now.parameters) == (0.5, 0.2, 500)
    with pytest.raises(ConfigError, match="nobody has trained yet"):
        of_status({"parameters": 5, "members": []}, 32)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = ["plan", "--step-s", "0.1", "--batch-size", "32", "--parameters", "1000"]
    assert main([*numbers, "--peers", "4", "--add", "4@0.25", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["now"]["forecast"]["gossip"]["samples_per_s"] == pytest.approx(1280)
    assert found["then"]["peers"] == 8
    assert found["then"]["forecast"]["gossip"]["samples_per_s"] == pytest.approx(1600)
    assert main(numbers) == 0
    assert "for a hub: K = 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "--step-s, --batch-size, --parameters: needed, or --workload"),
        (["--status", "nowhere"], "ADDRESS 'nowhere'"),
    ],
)
def test_what_is_missing(capsys: pytest.CaptureFixture[str], options: list[str], says: str) -> None:
    assert main(["plan", *options]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "4@0", "four", "4@", "-1", "99999999"])
def test_peers_that_cannot_be(text: str) -> None:
    with pytest.raises(ConfigError, match=r"N\[@SPEED\]"):
        parse_peers("--peers", text)

"""`murmurate top` and `status --json`, from descriptions that are made up."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from murmurate.core.clock import Clock, Dot
from murmurate.core.figures.progress import Neighbour, Progress, Staleness
from murmurate.edge.net.credentials import PLAINTEXT
from murmurate.edge.net.description import DescribedMember, DescribedTensor, Description
from murmurate.errors import ConfigError, PeerUnavailable
from murmurate.watch import status, top
from murmurate.watch.swarm import as_json


def described(seconds: float = 0.0, **of_b: Any) -> Description:
    """Two nodes and one that left; a and b have made 10 and 20 updates a second."""
    a = Progress(
        name="a",
        epoch=1,
        version=1,
        at=1000.0 + seconds,
        samples=int(320 * seconds),
        published=int(10 * seconds),
        bytes_sent=int(5e6 * seconds),
        loss=0.25,
        accuracy=0.9,
        staleness=Staleness(10, 1.0, 1, 2, 3),
        staleness_now=1.25,
        staleness_predicted=1.0,
        lag=3,
        neighbours=(Neighbour("b", 1000, 20, 25),),
    )
    b = Progress(
        name="b",
        epoch=1,
        version=1,
        **{"at": 5000.0 + seconds, "published": int(20 * seconds), **of_b},
    )
    return Description(
        instance="i",
        run="mnist",
        swarm="s",
        name="a",
        epoch=1,
        address="h:1",
        synced=True,
        schema="x",
        tensors=(DescribedTensor("w", "float32", (3, 4)),),
        members=(
            DescribedMember("b", 1, "alive", "h:2", "answered"),
            DescribedMember("a", 1, "alive", "h:1"),
            DescribedMember("c", 1, "left", "h:3", "said so"),
        ),
        clock=Clock([Dot("a", 1, 1), Dot("b", 1, 1)]),
        progress=(a, b),
    )


def drawn(swarm: dict[str, Any], rates: top.Rates, sort: str = "name") -> list[str]:
    out = io.StringIO()
    Console(width=120, file=out).print(top.picture(swarm, rates, sort))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [120, 80, 72, 60])
@pytest.mark.parametrize("sort", ["name", "address"])
def test_a_narrow_terminal_has_fewer_columns_and_whole_numbers(width: int, sort: str) -> None:
    rates = top.Rates()
    for seconds in (0.0, 2.0):
        rates.take(as_json(described(seconds)))
    out = io.StringIO()
    swarm = as_json(described(2.0))
    Console(width=width, file=out).print(top.picture(swarm, rates, sort, width))
    _, *table = out.getvalue().splitlines()
    assert max(map(len, table)) <= width
    assert not any("…" in line for line in table)
    assert ("address" in table[0]) == (width == 120 or sort == "address"), "what it is sorted by"
    assert "staleness" in table[0]
    assert "accuracy" in table[0]


def test_json_has_everything_and_no_nan() -> None:
    swarm = as_json(described())
    assert json.loads(json.dumps(swarm, allow_nan=False)) == swarm
    assert (swarm["run"], swarm["parameters"], swarm["updates"]) == ("mnist", 12, 2)
    a, b, c = swarm["members"]
    assert (a["name"], a["staleness_now"], a["lag"]) == ("a", 1.25, 3)
    assert a["neighbours"] == [
        {"name": "b", "sent_bytes": 1000, "applied": 20, "staleness": 25},
    ]
    assert b["loss"] is None
    assert b["staleness_predicted"] is None
    assert (c["state"], c["reason"], c["samples"], c["at"]) == ("left", "said so", 0, None)


def test_rates_are_by_the_clock_of_who_told() -> None:
    rates = top.Rates()
    for seconds in (0.0, 1.0, 2.0):
        rates.take(as_json(described(seconds)))
    assert rates.of("a", "updates_published") == pytest.approx(10)
    assert rates.of("b", "updates_published") == pytest.approx(20)
    assert rates.of("a", "bytes_sent") == pytest.approx(5e6)
    rates.take(as_json(described(2.0)))
    assert rates.of("a", "updates_published") == pytest.approx(10), "no news is no zero"
    assert rates.of("c", "samples") is None
    rates.take(as_json(described(3.0, published=0)))
    assert rates.of("b", "updates_published") is None, "a new life"


def test_the_table() -> None:
    rates = top.Rates()
    for seconds in (0.0, 2.0):
        rates.take(as_json(described(seconds)))
    lines = drawn(as_json(described(2.0)), rates)
    assert lines[0].startswith("mnist (sum): 2 of 3 alive, 640 samples, 320/s, 2 updates")
    assert lines[1].split()[:3] == ["node*", "state", "samples/s"]
    assert lines[2].split() == (
        ["a", "alive", "320", "10.0", "1.25", "1.00", "5.00", "0.2500", "90.0%", "3", "h:1"]
    )
    assert lines[4].split()[:2] == ["c", "left"]


@pytest.mark.parametrize(
    ("sort", "order"), [("name", "abc"), ("updates", "bac"), ("lag", "abc"), ("loss", "abc")]
)
def test_sorting_puts_the_unknown_last(sort: str, order: str) -> None:
    rates = top.Rates()
    for seconds in (0.0, 2.0):
        rates.take(as_json(described(seconds)))
    rows = top.rows(as_json(described(2.0)), rates, sort)
    assert "".join(row["name"] for row in rows) == order


def test_names_stay_text_on_the_terminal() -> None:
    description = described()
    evil = Description(
        **{
            **{name: getattr(description, name) for name in Description.__slots__},
            "members": (DescribedMember("[red]x[/red]", 1, "alive", "h:1"),),
        }
    )
    assert any("[red]x[/red]" in line for line in drawn(as_json(evil), top.Rates()))


def test_a_column_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="nearest: staleness"):
        top.run("127.0.0.1:1", PLAINTEXT, sort="stalenes")
    with pytest.raises(ConfigError, match="ADDRESS"):
        top.run("127.0.0.1", PLAINTEXT, sort="name")


def test_it_goes_on_when_the_member_is_away_for_a_moment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers: list[Any] = [described(0.0), PeerUnavailable("nobody answers"), described(1.0)]

    async def ask(_address: str, _timeout_s: float, _credentials: object) -> Description:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Description)
        return answer

    monkeypatch.setattr(status, "ask", ask)
    assert top.run("127.0.0.1:1", PLAINTEXT, interval_s=0.001, count=2) == 0
    out = capsys.readouterr().out
    assert "nobody answers; asking again" in out
    assert out.count("updates in the clock of a") == 2
    assert "\x1b" not in out, "plain where there is no terminal"
    answers.append(PeerUnavailable("nobody answers"))
    with pytest.raises(PeerUnavailable):
        top.run("127.0.0.1:1", PLAINTEXT, count=1)


def test_a_coordinator_has_pushes_and_no_clock() -> None:
    told = described(2.0)
    pushed = tuple(replace(each, applied=7) for each in told.progress)
    centre = replace(told, name="coordinator", clock=Clock(), progress=pushed)
    head = drawn(as_json(centre), top.Rates())[0]
    assert head.endswith("14 pushes of those who are here"), head


def test_status_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def ask(_address: str, _timeout_s: float, _credentials: object) -> Description:
        return described(1.0)

    monkeypatch.setattr(status, "ask", ask)
    assert status.run("127.0.0.1:1", 1.0, PLAINTEXT, as_json=True) == 0
    swarm = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in swarm["members"]] == ["a", "b", "c"]
    assert math.isclose(swarm["members"][0]["staleness_predicted"], 1.0)


def test_a_script_is_told_how_to_tell_its_losses() -> None:
    """After the README's three lines samples are counted, and that column stays empty."""
    told = described(2.0)
    silent = tuple(replace(each, loss=math.nan) for each in told.progress)
    idle = tuple(replace(each, samples=0) for each in silent)
    for progress, said in ((told.progress, False), (silent, True), (idle, False)):
        swarm = as_json(replace(told, progress=progress))  # the page shows these too
        assert any("swarm.log(loss=" in text for text in swarm["hints"]) == said
        assert any("swarm.log(loss=" in line for line in drawn(swarm, top.Rates())) == said


def test_status_ends_with_that_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def ask(_address: str, _timeout_s: float, _credentials: object) -> Description:
        told = described(2.0)
        return replace(told, progress=tuple(replace(one, loss=math.nan) for one in told.progress))

    monkeypatch.setattr(status, "ask", ask)
    assert status.run("127.0.0.1:1", 1.0, PLAINTEXT) == 0
    assert "swarm.log(loss=" in capsys.readouterr().out.splitlines()[-1]

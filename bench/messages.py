"""Small messages, there and back, against bare protobuf.

Bare: the generated class is made from the same values, serialized, and parsed again; nobody looks
at what came. Ours: a frozen class with every limit of its fields checked. CPU time of one thread,
in one interleaved run; a ratio is of turns next to each other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from core import timed
from report import Effort, Goal, Report, Scenario, ratios

from murmurate.core.clock import Clock, Range
from murmurate.core.message import Ack, Digest, Ping, Rumour
from murmurate.edge.net import coordinator_wire, wire
from murmurate.v1 import coordinator_pb2, peer_pb2

TIMES = 2000
GOALS = {
    "ping": Goal(value=2.5, floor=3.3, at_most=True),
    "ack with a rumour": Goal(value=2.9, floor=3.7, at_most=True),
    "digest, 4 origins": Goal(value=1.25, floor=1.6, at_most=True),
    "taken": Goal(value=4.6, floor=6.0, at_most=True),
}
"""About what encoders and decoders written by hand took, which these replaced: 2.5, 2.8, 1.16 and
4.4 (medians of two runs of 31 turns, on a machine with others on it)."""

Turn = Callable[[], object]


def ping() -> tuple[Turn, Turn]:
    said = Ping(7)

    def ours() -> object:
        return wire.decode_note(wire.encode_note(said))

    def bare() -> object:
        m = peer_pb2.Note(ping=peer_pb2.Ping(number=7, rumours=[]))
        return peer_pb2.Note.FromString(m.SerializeToString())

    return ours, bare


def ack() -> tuple[Turn, Turn]:
    said = Ack(7, "node-2", False, (Rumour("node-1", 2, 7, "alive", "10.0.0.1:7000", "node-3"),))

    def ours() -> object:
        return wire.decode_note(wire.encode_note(said))

    def bare() -> object:
        rumour = peer_pb2.Rumour(
            name="node-1",
            epoch=2,
            incarnation=7,
            state=peer_pb2.STATE_ALIVE,
            address="10.0.0.1:7000",
            source="node-3",
            last=0,
        )
        m = peer_pb2.Note(ack=peer_pb2.Ack(number=7, about="node-2", nack=False, rumours=[rumour]))
        return peer_pb2.Note.FromString(m.SerializeToString())

    return ours, bare


def digest() -> tuple[Turn, Turn]:
    """Most of it is the two clocks, which have a form of their own."""
    clock = Clock()
    for i in range(4):
        clock.add_range(Range(f"node-{i}", 1, 1, 1000 + i))
    said = Digest(1, clock, clock.copy(), True)

    def ours() -> object:
        return wire.decode_note(wire.encode_note(said))

    def bare() -> object:
        clocks = {"clock": clock.to_bytes(), "durable": clock.to_bytes()}
        m = peer_pb2.Note(digest=peer_pb2.Digest(epoch=1, ask=True, **clocks))
        back = peer_pb2.Note.FromString(m.SerializeToString()).digest
        return Clock.from_bytes(back.clock), Clock.from_bytes(back.durable)

    return ours, bare


def taken() -> tuple[Turn, Turn]:
    said = coordinator_wire.Task(taken=coordinator_wire.Taken(lease=7, version=4, staleness=3))

    def ours() -> object:
        return coordinator_wire.decode_task(coordinator_wire.encode_task(said))

    def bare() -> object:
        m = coordinator_pb2.Task(taken=coordinator_pb2.Taken(lease=7, version=4, staleness=3))
        return coordinator_pb2.Task.FromString(m.SerializeToString())

    return ours, bare


KINDS = {"ping": ping, "ack with a rumour": ack, "digest, 4 origins": digest, "taken": taken}


def messages(report: Report, effort: Effort) -> None:
    times = 20 if effort.quick else TIMES
    kept: dict[str, Any] = {}
    for name, make in KINDS.items():
        ours, bare = make()
        turns = {
            "ours": lambda act=ours: timed(act, times) * 1e6,
            "bare": lambda act=bare: timed(act, times) * 1e6,
        }
        found = effort.interleaved(turns)
        kept[name] = found
        report.add(f"{name}, a second", [1e6 / each for each in found["ours"]], unit="/s")
        what = f"{name} / bare protobuf"
        report.add(what, ratios(found["ours"], found["bare"]), unit="x", goal=GOALS.get(name))
    report.keep("microseconds", kept)


SCENARIOS: dict[str, Scenario] = {"messages": messages}


if __name__ == "__main__":
    import run

    sys.exit(run.main(SCENARIOS, __doc__))

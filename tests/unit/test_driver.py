"""`core/driver.py`: each rule of it, with a peer that does as told and ports that write down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pytest
import torch

from murmurate.core.clock import Clock, Dot
from murmurate.core.driver import (
    DECIDED_MAX,
    Driver,
    Folded,
    Life,
    NoDisk,
    Ports,
    Seen,
)
from murmurate.core.effect import (
    Adopted,
    Applied,
    Deliver,
    Drop,
    Effect,
    Rejoin,
    Save,
    Send,
    Verdict,
)
from murmurate.core.intervals import Runs
from murmurate.core.message import Decided, Delta, Push, Stamp
from murmurate.errors import LocalProtocolError, RemoteProtocolError

DOT = Dot("me", 1, 1)
PUSH = Push((Stamp(DOT, Clock()),), torch.ones(1))
APPLIED = Applied((DOT,), (0,))
ADOPTED = Adopted("b", None, (), (), ())


class Told:
    """A peer that answers each call with the effects it was told to, and writes the calls down."""

    def __init__(self, answers: dict[object, list[Effect]] | None = None) -> None:
        self.name = "me"
        self.synced = True
        self.answers = answers or {}
        self.calls: list[tuple[Any, ...]] = []
        self.waiting: dict[str, list[str]] = {}
        self.on_the_way: list[tuple[str, str]] = []

    def _answer(self, *call: Any) -> list[Effect]:
        self.calls.append(call)
        for key in (call[0], call[-1]):
            if key in self.answers:
                return self.answers[key]
        return []

    def join(self, names: Iterable[str], now: float) -> list[Effect]:
        return self._answer("join", *names)

    def leave(self, now: float) -> list[Effect]:
        return self._answer("leave")

    def tick(self, now: float) -> list[Effect]:
        return self._answer("tick")

    def heard(self, sender: str, now: float, *, snapshot: bool = False) -> list[Effect]:
        return self._answer("heard", sender)

    def receive(self, sender: str, message: Any, now: float) -> list[Effect]:
        if message == "nonsense":
            raise RemoteProtocolError("message", message)
        return self._answer("receive", sender, message)

    def fold(self, sender: str, message: Any, now: float) -> list[Effect]:
        if message == "broken":
            raise ValueError(message)
        return self._answer("fold", sender, message)

    def beside(self, waiting: Sequence[Any], new: Any) -> Any | None:
        if not isinstance(new, str):
            return None
        if new.startswith("sum"):
            return f"{waiting[-1]}+{new}"
        return new if new.startswith("apart") else None

    def publish(
        self, delta: Delta, context: Clock, batches: Runs = (), *, written: bool = False
    ) -> list[Effect]:
        if context:
            raise LocalProtocolError("its context is too old")
        return self._answer("publish")

    def ready(self, now: float) -> list[str]:
        return [to for to, waiting in self.waiting.items() if waiting]

    def take(self, to: str, now: float) -> str | None:
        if not self.waiting[to]:
            return None
        taken = self.waiting[to].pop(0)
        self.on_the_way.append((to, taken))
        return taken

    def landed(self, to: str, message: Any) -> None:
        self.on_the_way.remove((to, message))


class Written(AbstractContextManager[None]):
    """All ports of one driver, and its lock: what was asked of them, in order."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.full = False
        self.window = 100
        self.tells = True
        self.next: Life[Told] | None = None
        self.locked = False

    def meet(self, to: str) -> None:
        assert self.locked

    def post(self, to: str, message: Any) -> None:
        assert not self.locked
        self.said.append(("post", to, message))

    def free(self, to: str) -> bool:
        return self.window > 0

    def carry(self, to: str, message: Any) -> bool:
        assert not self.locked
        self.window -= 1
        self.said.append(("carry", to, message))
        return self.tells

    def save(self, key: str, value: Any) -> bool:
        self.said.append(("save", key, value))
        return not self.full

    def begin_again(self, reason: str, now: float) -> Life[Told] | None:
        self.said.append(("again", reason))
        return self.next

    def saw(self, effect: Seen) -> None:
        self.said.append(("saw", effect))

    def __enter__(self) -> None:
        assert not self.locked
        self.locked = True

    def __exit__(self, *_: object) -> None:
        self.locked = False


class Scene:
    """One driver, its peer and its ports; `done` counts what the links were told."""

    def __init__(self, answers: dict[object, list[Effect]] | None = None) -> None:
        self.peer = Told(answers)
        self.ports = Written()
        ports = self.ports
        self.driver: Driver[Told] = Driver(
            Ports(network=ports, disk=ports, lives=ports, watch=ports)
        )
        self.driver.begin(Life(self.peer, ("a", "b")), 0.0)
        self.done: list[str] = []

    def receive(self, message: Any) -> None:
        self.driver.receive("b", message, 1.0, lambda: self.done.append(message))

    def pump(self) -> list[tuple[Any, ...]]:
        """What left, since the last time."""
        before = len(self.ports.said)
        self.driver.pump(1.0, self.ports)
        return [said for said in self.ports.said[before:] if said[0] in ("post", "carry")]


def test_a_driver_without_a_life_says_so() -> None:
    ports = Written()
    driver: Driver[Told] = Driver(Ports(network=ports, disk=ports, lives=ports, watch=ports))
    assert not driver.alive
    assert driver.pump(1.0) is False
    with pytest.raises(LocalProtocolError, match="not started"):
        driver.tick(1.0)


def test_a_life_begins_with_its_seed_peers() -> None:
    scene = Scene()
    assert scene.peer.calls == [("join", "a", "b")]
    assert scene.driver.peer is scene.peer


def test_effects_are_carried_out_in_order_and_nothing_leaves_before_the_pump() -> None:
    drop, verdict = Drop("b", "stale"), Verdict("b", 1, "alive", "")
    scene = Scene({"tick": [verdict, Save("vow", 1), Send("b", "x"), drop]})
    scene.driver.tick(1.0)
    assert scene.ports.said == [
        ("saw", verdict),
        ("save", "vow", 1),
        ("saw", drop),
    ]
    assert scene.pump() == [("post", "b", "x")]
    assert scene.pump() == []


def test_after_a_save_that_failed_nothing_of_its_list_leaves() -> None:
    scene = Scene(
        {"tick": [Send("b", "before"), Save("vow", 1), Send("b", "after"), APPLIED, Save("met", 2)]}
    )
    scene.ports.full = True
    scene.driver.tick(1.0)
    assert scene.ports.said == [("save", "vow", 1)]
    assert scene.pump() == [("post", "b", "before")]


def test_what_one_says_to_itself_comes_back_before_the_next_effect() -> None:
    scene = Scene(
        {
            "tick": [Send("me", "prepare"), Send("b", "prepare")],
            "prepare": [Save("vow", 1), Send("me", "promise")],
            "promise": [Send("b", "accept")],
        }
    )
    scene.driver.tick(1.0)
    assert [call for call in scene.peer.calls if call[0] == "receive"] == [
        ("receive", "me", "prepare"),
        ("receive", "me", "promise"),
    ]
    assert scene.pump() == [("post", "b", "accept"), ("post", "b", "prepare")]


def test_a_vote_of_mine_that_is_not_durable_does_not_count_but_others_are_asked() -> None:
    """The list that failed is the nested one."""
    scene = Scene(
        {
            "tick": [Send("me", "prepare"), Send("b", "prepare")],
            "prepare": [Save("vow", 1), Send("me", "promise")],
        }
    )
    scene.ports.full = True
    scene.driver.tick(1.0)
    assert ("receive", "me", "promise") not in scene.peer.calls
    assert scene.pump() == [("post", "b", "prepare")]


def test_a_delivery_waits_for_fold_and_its_link_is_told_when_it_is_folded() -> None:
    scene = Scene({"update": [Deliver("b", "update")]})
    scene.receive("update")
    scene.pump()
    assert [one.message for one in scene.driver.inbox] == ["update"]
    assert scene.done == []
    scene.peer.answers = {"fold": [APPLIED]}
    assert scene.driver.fold(1.0) == Folded(changed=True, began=False)
    assert scene.done == [], "told in the thread that pumps, not in the one that folds"
    scene.pump()
    assert scene.done == ["update"]
    assert scene.driver.fold(1.0) is None


def test_of_several_of_one_sender_that_wait_all_give_their_places_back() -> None:
    words = ("one", "two", "apart3", "sum4", "sum5", "six")
    scene = Scene({"fold": [APPLIED], **{each: [Deliver("b", each)] for each in words}})
    for message in words[:2]:
        scene.receive(message)
    scene.pump()
    assert not scene.done
    scene.receive("apart3")
    scene.pump()
    assert sorted(scene.done) == ["apart3", "one", "two"]  # a link tells of them in order
    for message in words[3:]:
        scene.receive(message)
    scene.pump()
    assert sorted(scene.done) == ["apart3", "one", "sum4", "sum5", "two"]
    waiting = [each.message for each in scene.driver.inbox]
    assert waiting == ["one", "two", "apart3+sum4+sum5", "six"]  # the last one holds its place
    while scene.driver.fold(1.0):
        pass
    scene.pump()
    assert sorted(scene.done) == sorted(words)


def test_what_is_not_delivered_is_given_back_at_once() -> None:
    scene = Scene({"ping": [Send("b", "ack")]})
    scene.receive("ping")
    scene.driver.give_back()
    assert scene.done == ["ping"]


def test_a_delivery_of_something_else_does_not_take_the_place_of_the_message() -> None:
    """A snapshot says that a partner is dead: what that one did not confirm is taken back first."""
    scene = Scene({"snapshot": [Deliver("c", "gone"), Deliver("b", "snapshot")]})
    scene.receive("snapshot")
    scene.driver.fold(1.0)
    scene.pump()
    assert scene.done == []
    scene.driver.fold(1.0)
    scene.pump()
    assert scene.done == ["snapshot"]


def test_a_message_that_is_refused_is_the_senders_fault_and_nothing_happens() -> None:
    scene = Scene()
    with pytest.raises(RemoteProtocolError):
        scene.receive("nonsense")
    scene.pump()
    assert scene.done == [], "whoever refuses it breaks the link or says so itself"


def test_so_many_decisions_wait_at_most() -> None:
    scene = Scene()
    done: list[int] = []
    for number in range(DECIDED_MAX + 10):
        message = Decided(())
        scene.peer.answers = {"receive": [Deliver("b", message)]}
        scene.driver.receive("b", message, 1.0, partial(done.append, number))
    scene.peer.answers = {"update": [Deliver("b", "update")]}
    scene.receive("update")
    assert len(scene.driver.inbox) == DECIDED_MAX + 1
    scene.pump()
    assert done == [DECIDED_MAX + n for n in range(10)]


@pytest.mark.parametrize(
    ("synced", "effects", "expected"),
    [
        (True, [APPLIED], Folded(changed=True, began=False)),
        (True, [Drop("b", "duplicate")], Folded(changed=False, began=False)),
        (True, [ADOPTED], Folded(changed=True, began=False)),
        (False, [ADOPTED], Folded(changed=True, began=True)),
    ],
)
def test_what_became_of_a_delivery(synced: bool, effects: list[Effect], expected: Folded) -> None:
    """Only the snapshot that a life begins with makes steps of before void."""
    scene = Scene({"update": [Deliver("b", "update")]})
    scene.receive("update")
    scene.peer.synced = synced
    scene.peer.answers = {"fold": effects}
    assert scene.driver.fold(1.0) == expected


def test_at_a_rejoin_inbox_and_outgoing_are_dropped_and_every_link_is_told() -> None:
    scene = Scene(
        {
            "one": [Deliver("b", "one")],
            "two": [Deliver("b", "two")],
            "fold": [Send("b", "of the old life"), Rejoin("voted out"), Send("b", "never")],
        }
    )
    again = Told({"join": [Send("b", "hello")]})
    scene.ports.next = Life(again, ("b",))
    scene.receive("one")
    scene.receive("two")
    scene.driver.fold(1.0)
    assert scene.driver.peer is again
    assert not scene.driver.inbox
    assert scene.pump() == [("post", "b", "hello")]
    assert sorted(scene.done) == ["one", "two"]


def test_a_life_that_cannot_begin_yet_begins_later() -> None:
    scene = Scene({"tick": [Rejoin("voted out")]})
    scene.driver.tick(1.0)
    assert not scene.driver.alive
    assert scene.pump() == []
    scene.driver.begin(Life(Told({"join": [Send("b", "hello")]})), 2.0)
    assert scene.pump() == [("post", "b", "hello")]


def test_what_follows_is_not_carried_out_when_a_word_to_oneself_ends_the_life() -> None:
    scene = Scene({"tick": [Send("me", "end"), Send("b", "never")], "end": [Rejoin("voted out")]})
    scene.ports.next = Life(Told())
    scene.driver.tick(1.0)
    assert scene.pump() == []


def test_a_message_that_ends_the_life_it_came_to_is_given_back_once() -> None:
    scene = Scene({"last": [Deliver("b", "last"), Rejoin("voted out")]})
    scene.ports.next = Life(Told())
    scene.receive("last")
    scene.pump()
    assert scene.done == ["last"]


def test_each_free_link_takes_what_waits_for_it() -> None:
    scene = Scene()
    scene.peer.waiting = {"a": ["1", "2"], "b": ["3"]}
    scene.driver.say("b", "progress")
    assert scene.pump() == [
        ("post", "b", "progress"),
        ("carry", "a", "1"),
        ("carry", "a", "2"),
        ("carry", "b", "3"),
    ]
    assert scene.peer.on_the_way == [("a", "1"), ("a", "2"), ("b", "3")]


def test_a_busy_link_takes_nothing() -> None:
    scene = Scene()
    scene.ports.window = 1
    scene.peer.waiting = {"a": ["1", "2"], "b": ["3"]}
    assert scene.pump() == [("carry", "a", "1")]
    assert scene.peer.waiting == {"a": ["2"], "b": ["3"]}


def test_where_the_network_will_not_tell_it_counts_as_landed() -> None:
    scene = Scene()
    scene.ports.tells = False
    scene.peer.waiting = {"a": ["1"]}
    scene.pump()
    assert scene.peer.on_the_way == []


def test_weights_and_clock_are_torn_apart_by_what_breaks_in_between() -> None:
    scene = Scene({"broken": [Deliver("b", "broken")]})
    with pytest.raises(LocalProtocolError):
        scene.driver.publish(torch.ones(1), Clock((DOT,)), 1.0)
    scene.driver.publish(torch.ones(1), Clock(), 1.0)
    assert not scene.driver.torn
    scene.receive("broken")
    with pytest.raises(ValueError, match="broken"):
        scene.driver.fold(1.0)
    assert scene.driver.torn


def test_an_update_of_mine_is_counted() -> None:
    scene = Scene({"publish": [APPLIED]})
    scene.driver.publish(torch.ones(1), Clock(), 1.0)
    assert scene.ports.said == [("saw", APPLIED)]


def test_who_leaves_and_who_is_heard() -> None:
    scene = Scene({"leave": [Send("b", "bye")], "heard": [Send("b", "ack")]})
    scene.driver.leave(1.0)
    scene.driver.heard("b", 1.0, snapshot=True)
    assert scene.pump() == [("post", "b", "bye"), ("post", "b", "ack")]


def test_without_a_disk_nothing_is_kept_and_nothing_held_back() -> None:
    disk = NoDisk()
    assert disk.save("vow", 1)

"""Finding the swarm: whom to join, under which name, or that there is nobody and I found the run.

Whoever is asked describes itself first, so a peer of another run, model or version is refused with
a sentence that says what differs, before a single weight is exchanged.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from murmurate.core.layout import Layout, TensorSpec
from murmurate.core.message import ALIVE, SUSPECT
from murmurate.core.values.addresses import loopback, split_address
from murmurate.core.values.names import ordinal
from murmurate.edge.net.deadline import Deadline
from murmurate.edge.net.dns import addresses, is_named
from murmurate.edge.net.transport import Transport
from murmurate.edge.net.wire import Description
from murmurate.edge.runtime.other_swarms import preferred
from murmurate.errors import (
    ConfigError,
    MurmurateError,
    PeerExists,
    PeerTimeout,
    PeerUnavailable,
    SchemaMismatch,
    TransportError,
)

log = logging.getLogger("murmurate")

ASK_TIMEOUT_S = 3.0
"""For the first answer; a peer far away, or with much to tell, is given twice as long each time."""
ASK_AGAIN_S = 0.2
SURE_S = 1.0
"""So long nobody may be in a swarm before one that asked for all by name founds it: of two who come
at once, each has looked again after the other could be seen."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where I enter: the swarm's id, my name in it, and where its members are."""

    swarm: str
    name: str
    members: dict[str, str]
    back: bool = False
    """I was here before, and remember it."""
    last_life: int = 0
    """The last of this name that those know who are there; 0: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What I know of an earlier life."""

    swarm: str
    name: str
    peers: tuple[str, ...] = ()
    """Where others were."""
    weights: bool = False
    """Whether I could go on alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What I am looking for."""

    run: str
    rule: str
    name: str
    instance: str
    layout: Layout
    peers: tuple[str, ...]
    found: bool
    timeout_s: float
    memory: Memory | None = None
    address: str = ""
    """Where I am: nobody else can be there."""
    careful: bool = False
    """Found the run only if all that the peers' name stands for say that there is none."""

    @property
    def named(self) -> bool:
        return any(is_named(peer) for peer in self.peers)


def compare(wish: Wish, other: Description, where: str) -> None:
    """Raise what differs between my run and theirs."""
    if other.run != wish.run:
        raise SchemaMismatch(f"{where} trains run {other.run!r}, this node {wish.run!r}")
    if other.rule != wish.rule:
        raise SchemaMismatch(
            f"{where} trains with rule {other.rule!r}, this node {wish.rule!r}: all members need"
            " the same"
        )
    if other.schema != wish.layout.schema:
        theirs = [TensorSpec(t.name, t.dtype, tuple(t.shape)) for t in other.tensors]
        what = wish.layout.difference(theirs) or "its schema hash differs"
        raise SchemaMismatch(f"{where} trains another model: it {what}")


def check_name(name: str, mine: str, other: Description, what_then: str) -> None:
    """`PeerExists`: somebody seems to use my name somewhere else than `mine`.

    If that is what is left of myself, the others will know in a few seconds.
    """
    for member in other.members:
        elsewhere = member.address not in ("", mine)
        if member.name == name and member.state in (ALIVE, SUSPECT) and elsewhere:
            where = f"by a live peer at {member.address}"
            raise PeerExists(f"name {name!r} is taken {where}{what_then}")


def last_life(name: str, others: Sequence[Description]) -> int:
    """The last life of that name that any of them knows; 0: none."""
    lives = [0]
    for other in others:
        lives += [member.epoch for member in other.members if member.name == name]
        keys = (*other.clock.keys(), *(key for key, _ in other.folds))
        lives += [epoch for origin, epoch in keys if origin == name]
    return max(lives)


@dataclass(frozen=True, slots=True)
class Round:
    """What came of asking everyone once."""

    others: tuple[Description, ...]
    trouble: tuple[TransportError, ...]
    myself: bool
    """Whether one of those asked was I."""

    @property
    def synced(self) -> list[Description]:
        return [other for other in self.others if other.synced]

    @property
    def whole(self) -> bool:
        """Whether a name stood for all there are. It stands for me, so also for whoever came before
        me; and each of them has answered, or is not there: nobody is silent."""
        return self.myself and not any(isinstance(each, PeerTimeout) for each in self.trouble)


async def find_place(transport: Transport, wish: Wish, new_swarm: str) -> Place:
    """Ask the seed peers until one of them is in the swarm, or say that it does not exist yet.

    Who remembers a swarm goes back to it, and goes on alone where it might found one: whoever else
    comes back remembers the same swarm, so they meet again.
    """
    memory = wish.memory
    if memory is not None and (place := await _old_place(transport, wish, memory)) is not None:
        return place
    if not wish.peers:
        return Place(new_swarm, wish.name, {})
    deadline = time.monotonic() + wish.timeout_s
    waits: dict[str, Deadline] = {}
    sure_since = math.inf
    said = False
    while True:
        now = await _ask_all(transport, wish, waits)
        late = time.monotonic() >= deadline
        if now.synced:
            synced, line = preferred(now.synced)
            if line and not said:
                said = True
                log.warning("%s", line)
            try:
                return _place_among(wish, synced)
            except PeerExists:
                if late:
                    raise
        elif wish.found and wish.careful:
            sure = now.whole and _is_first_by_name(wish, now.others, late=late)
            sure_since = min(sure_since, time.monotonic()) if sure else math.inf
            if time.monotonic() >= sure_since + SURE_S:
                return Place(new_swarm, wish.name, {})
            if late and not sure:
                raise _nobody(wish, now) if now.whole else _unsure(wish, now)
        elif wish.found and (late or (now.others and _is_first(wish, now.others))):
            # Of those who all may found the run, one does: the others will find it there.
            return Place(new_swarm, wish.name, {})
        elif late:
            raise _nobody(wish, now)
        await asyncio.sleep(ASK_AGAIN_S)


def _place_among(wish: Wish, synced: Sequence[Description]) -> Place:
    """Mine in a swarm that is there: under my old name, whether I remember my life there or not."""
    swarm, memory = synced[0].swarm, wish.memory
    if memory is not None and memory.swarm == swarm:
        return _old_name(wish, memory, synced)
    check_name(wish.name, wish.address, synced[0], ": choose another")
    told = last_life(wish.name, synced)
    return Place(swarm, wish.name, _addresses(synced), last_life=told)


def _old_name(wish: Wish, memory: Memory, synced: Sequence[Description]) -> Place:
    what_then = ": are its checkpoints a copy of mine?"
    check_name(memory.name, wish.address, synced[0], what_then)
    told = last_life(memory.name, synced)
    return Place(memory.swarm, memory.name, _addresses(synced), back=True, last_life=told)


async def _ask_all(transport: Transport, wish: Wish, waits: dict[str, Deadline]) -> Round:
    """Whom the peers stand for now; `waits` remembers how long each took."""
    places = await addresses(wish.peers)
    for place in places:
        if place not in waits:
            waits[place] = Deadline(first=ASK_TIMEOUT_S, pause=ASK_TIMEOUT_S, most=wish.timeout_s)
    answers = await asyncio.gather(*(_ask(transport, place, waits[place]) for place in places))
    others: list[Description] = []
    trouble: list[TransportError] = []
    myself = False
    for where, answer in zip(places, answers, strict=True):
        if isinstance(answer, TransportError):
            trouble.append(answer)
        elif answer.instance == wish.instance:
            if len(wish.peers) == 1 and not wish.found and not wish.named:
                raise ConfigError(f"peers: {where} is this node itself")
            myself = True
        else:
            compare(wish, answer, where)
            others.append(answer)
    return Round(tuple(others), tuple(trouble), myself)


async def _old_place(transport: Transport, wish: Wish, memory: Memory) -> Place | None:
    """Where I was before, if it is still there; or there alone, if I may. None: neither.

    With peers by name anybody may: the name brings us together again. But not before those have
    been asked whom it stands for, lest I train on old weights beside them.
    """
    deadline = time.monotonic() + wish.timeout_s
    waits: dict[str, Deadline] = {}
    while True:
        late = time.monotonic() >= deadline
        now = await _ask_all(transport, wish, waits) if wish.named else None
        asked = dict.fromkeys((*memory.peers, *(() if wish.named else wish.peers)))
        answers = await asyncio.gather(*(_look(transport, address) for address in asked))
        others = [other for other in answers if other is not None and other.synced]
        if now is not None:
            others += now.synced
        mine = [other for other in others if other.swarm == memory.swarm]
        if mine:
            try:
                return _old_name(wish, memory, mine)
            except PeerExists:
                if late:
                    raise
        elif others or not memory.weights or not (wish.named or wish.found or not wish.peers):
            return None
        elif now is None or now.whole or late:
            return Place(memory.swarm, memory.name, {}, back=True)
        await asyncio.sleep(ASK_AGAIN_S)


async def _look(transport: Transport, address: str) -> Description | None:
    """Whoever is at an address that may be old."""
    try:
        return await transport.describe(address, ASK_TIMEOUT_S)
    except MurmurateError:
        return None


def _is_first(wish: Wish, others: Sequence[Description]) -> bool:
    """Whether of those who may found the run I am the one; nobody is who is back from earlier."""
    return all(wish.instance < other.instance and not other.swarm for other in others)


def _is_first_by_name(wish: Wish, others: Sequence[Description], *, late: bool) -> bool:
    """The same, where only they may whose names end in 0: one of each StatefulSet. Those who are
    back from earlier are given time: they can go on, unless they have no checkpoint."""
    if not late and any(other.swarm for other in others):
        return False
    rivals = [other for other in others if ordinal(other.name) == 0]
    return all(wish.instance < other.instance for other in rivals)


async def _ask(transport: Transport, address: str, wait: Deadline) -> Description | TransportError:
    began = time.monotonic()
    try:
        answer = await transport.describe(address, wait.limit)
    except TransportError as error:
        if isinstance(error, PeerTimeout):
            wait.miss()
        return error
    wait.note(time.monotonic() - began)
    return answer


def _addresses(others: Sequence[Description]) -> dict[str, str]:
    known: dict[str, str] = {}
    for other in others:
        known[other.name] = other.address
        for member in other.members:
            if member.state in (ALIVE, SUSPECT) and member.address:
                known.setdefault(member.name, member.address)
    return known


def _nobody(wish: Wish, now: Round) -> TransportError:
    waited = f"in {wish.timeout_s:g} s"
    if now.others:
        names = ", ".join(other.name for other in now.others)
        how = "the one whose name ends in -0" if wish.named else "no peers, or found=True"
        return PeerUnavailable(
            f"peers: {names} answered, but nobody is in a swarm yet ({waited}): one node must found"
            f" the run ({how})"
        )
    why = now.trouble[0] if now.trouble else f"{', '.join(wish.peers)} stands for nobody else"
    far = next((peer for peer in wish.peers if _is_elsewhere(peer)), None)
    how = f' (with listen="{far}", insecure=True: unsaid, it is on its own machine only)'
    return PeerUnavailable(
        f"peers: nobody answered {waited}: {why}; a node of run {wish.run!r} must listen"
        f" there{how if far else ''}: was it started, or had it done its steps and left?"
        " (wait_for=N waits for N)"
    )


def _is_elsewhere(peer: str) -> bool:
    """Whether it is an address on another machine, not a name for many."""
    try:
        return not is_named(peer) and not loopback(split_address(peer)[0])
    except ValueError:
        return False


def _unsure(wish: Wish, now: Round) -> TransportError:
    """Why I did not found the run: there may be one."""
    silent = [str(each) for each in now.trouble if isinstance(each, PeerTimeout)]
    name = ", ".join(wish.peers)
    if not now.myself:
        return PeerUnavailable(
            f"peers: {name} does not stand for this node in {wish.timeout_s:g} s: is the service"
            " there, and does it publish addresses that are not ready?"
        )
    return PeerUnavailable(
        f"peers: not founding a run that may exist: {silent[0]}, though {name} stands for it"
    )

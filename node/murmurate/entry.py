"""Finding the swarm: whom to join, under which name, or that there is nobody and I found the run.

Whoever is asked describes itself first, so a peer of another run, model or version is refused with
a sentence that says what differs, before a single weight is exchanged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from murmurate.core.layout import Layout, TensorSpec
from murmurate.core.message import ALIVE, SUSPECT
from murmurate.errors import (
    ConfigError,
    MurmurateError,
    PeerExists,
    PeerTimeout,
    PeerUnavailable,
    SchemaMismatch,
    TransportError,
)
from murmurate.io.deadline import Deadline
from murmurate.io.transport import Transport
from murmurate.io.wire import Description

ASK_TIMEOUT_S = 3.0
"""For the first answer; a peer far away, or with much to tell, is given twice as long each time."""
ASK_AGAIN_S = 0.2


@dataclass(frozen=True, slots=True)
class Place:
    """Where I enter: the swarm's id, my name in it, and where its members are."""

    swarm: str
    name: str
    members: dict[str, str]
    back: bool = False
    """I was here before, and remember it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What I know of an earlier life."""

    swarm: str
    name: str
    address: str
    """Where I am now: nobody else can be there."""
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


def compare(wish: Wish, other: Description, where: str) -> None:
    """Raise what differs between my run and theirs."""
    if other.run != wish.run:
        raise SchemaMismatch(f"{where} trains run {other.run!r}, this node {wish.run!r}")
    if other.rule != wish.rule:
        raise SchemaMismatch(f"{where} trains with rule {other.rule!r}, this node {wish.rule!r}")
    if other.schema != wish.layout.schema:
        theirs = [TensorSpec(t.name, t.dtype, tuple(t.shape)) for t in other.tensors]
        what = wish.layout.difference(theirs) or "its schema hash differs"
        raise SchemaMismatch(f"{where} trains another model: it {what}")


def free_name(name: str, other: Description) -> str:
    """My name, or the next free one: who left nothing on a disk cannot take an old life up again.

    A member that votes must remember what it promised. One that comes back without its memory
    comes back as somebody else.
    """
    taken = {member.name: member for member in other.members}
    here = taken.get(name)
    if here is not None and here.state in (ALIVE, SUSPECT):
        raise PeerExists(f"name {name!r} is taken by a live peer at {here.address}: choose another")
    if name not in taken:
        return name
    return next(new for k in range(2, 1 << 30) if (new := f"{name}.{k}") not in taken)


def old_name(memory: Memory, other: Description) -> str:
    """My name in an earlier life, unless somebody seems to use it somewhere else.

    If that is what is left of myself, the others will know in a few seconds.
    """
    for member in other.members:
        elsewhere = member.address and member.address != memory.address
        if member.name == memory.name and member.state in (ALIVE, SUSPECT) and elsewhere:
            raise PeerExists(
                f"name {memory.name!r} is taken by a live peer at {member.address}: are its"
                " checkpoints a copy of mine?"
            )
    return memory.name


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
    waits = {
        peer: Deadline(first=ASK_TIMEOUT_S, pause=ASK_TIMEOUT_S, most=wish.timeout_s)
        for peer in wish.peers
    }
    while True:
        answers = await asyncio.gather(*(_ask(transport, *wait) for wait in waits.items()))
        trouble: Sequence[TransportError] = [a for a in answers if isinstance(a, TransportError)]
        others: list[Description] = []
        for where, answer in zip(wish.peers, answers, strict=True):
            if isinstance(answer, TransportError):
                continue
            if answer.instance == wish.instance:
                if len(wish.peers) == 1 and not wish.found:
                    raise ConfigError(f"peers: {where} is this node itself")
                continue
            compare(wish, answer, where)
            others.append(answer)
        late = time.monotonic() >= deadline
        synced = [other for other in others if other.synced]
        if synced:
            try:
                if memory is not None and memory.swarm == synced[0].swarm:
                    name = old_name(memory, synced[0])
                    return Place(memory.swarm, name, _addresses(synced), back=True)
                name = free_name(wish.name, synced[0])
            except PeerExists:
                if late:
                    raise
            else:
                return Place(synced[0].swarm, name, _addresses(synced))
        elif wish.found and (late or (others and _is_first(wish, others))):
            # Of those who all may found the run, one does: the others will find it there.
            return Place(new_swarm, wish.name, {})
        elif late:
            raise _nobody(wish, others, trouble)
        await asyncio.sleep(ASK_AGAIN_S)


async def _old_place(transport: Transport, wish: Wish, memory: Memory) -> Place | None:
    """Where I was before, if it is still there; or there alone, if I may. None: neither."""
    deadline = time.monotonic() + wish.timeout_s
    while True:
        asked = dict.fromkeys((*memory.peers, *wish.peers))
        answers = await asyncio.gather(*(_look(transport, address) for address in asked))
        others = [other for other in answers if other is not None and other.synced]
        mine = [other for other in others if other.swarm == memory.swarm]
        if mine:
            try:
                name = old_name(memory, mine[0])
            except PeerExists:
                if time.monotonic() >= deadline:
                    raise
            else:
                return Place(memory.swarm, name, _addresses(mine), back=True)
        elif memory.weights and not others and (wish.found or not wish.peers):
            return Place(memory.swarm, memory.name, {}, back=True)
        else:
            return None
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


def _nobody(
    wish: Wish, others: Sequence[Description], trouble: Sequence[TransportError]
) -> TransportError:
    waited = f"in {wish.timeout_s:g} s"
    if others:
        names = ", ".join(other.name for other in others)
        return PeerUnavailable(
            f"peers: {names} answered, but nobody is in a swarm yet ({waited}): one node must found"
            " the run (no peers, or found=True)"
        )
    return PeerUnavailable(f"peers: nobody answered {waited}: {trouble[0]}")

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
    PeerExists,
    PeerUnavailable,
    SchemaMismatch,
    TransportError,
)
from murmurate.io.transport import Transport
from murmurate.io.wire import Description

ASK_TIMEOUT_S = 3.0
ASK_AGAIN_S = 0.2


@dataclass(frozen=True, slots=True)
class Place:
    """Where I enter: the swarm's id, my name in it, and where its members are."""

    swarm: str
    name: str
    members: dict[str, str]


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


async def find_place(transport: Transport, wish: Wish, new_swarm: str) -> Place:
    """Ask the seed peers until one of them is in the swarm, or say that it does not exist yet."""
    if not wish.peers:
        return Place(new_swarm, wish.name, {})
    deadline = time.monotonic() + wish.timeout_s
    while True:
        answers = await asyncio.gather(*(_ask(transport, peer) for peer in wish.peers))
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


def _is_first(wish: Wish, others: Sequence[Description]) -> bool:
    return all(wish.instance < other.instance for other in others)


async def _ask(transport: Transport, address: str) -> Description | TransportError:
    try:
        return await transport.describe(address, ASK_TIMEOUT_S)
    except TransportError as error:
        return error


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

"""Real processes without a disk that are killed and started again with the same command."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack

import pytest
from tests.integration.processes import WAIT_S, Process, State, ended, free_port
from tests.integration.test_resume import together

from murmurate.edge.net.credentials import PLAINTEXT
from murmurate.watch import status

AT_ONCE_S = 20.0
"""Until a member that is thought alive is taken for dead, on a machine with other things to do."""


def ask(node: Process) -> State:
    """How far it is."""
    node.tell("here")
    return node.hear("here")


def votes_of(node: Process) -> dict[str, int]:
    """Who votes there, and since which life each remembers its votes."""
    newest = ask(node).history[-1]
    return dict(zip(newest.roster, newest.memories, strict=True))


def until_votes(node: Process, wanted: dict[str, int]) -> None:
    deadline = time.monotonic() + WAIT_S
    while votes_of(node) != wanted:
        assert time.monotonic() < deadline, f"{votes_of(node)}, wanted {wanted}"
        time.sleep(0.1)


def swarm_of(*names: str) -> tuple[list[Process], list[str], dict[str, int]]:
    """Processes without a folder, where they listen, and what votes there are."""
    places = [f"127.0.0.1:{free_port()}" for _ in names]
    nodes: list[Process] = []
    lives: dict[str, int] = {}
    for seed, (name, place) in enumerate(zip(names, places, strict=True)):
        peers = places[:1] if nodes else []
        nodes.append(Process(name, None, seed=seed, listen=place, peers=peers))
        lives[name] = nodes[-1].hear("joined").epoch
    return nodes, places, lives


@pytest.mark.parametrize("where", ["at its address", "somewhere else"])
def test_who_has_no_disk_comes_back_under_its_name(where: str) -> None:
    """Killed, it is still thought alive: at its own address nobody else can be, so it is back at
    once; somewhere else only when it is taken for dead."""
    nodes, places, lives = swarm_of("n0", "n1", "n2")
    with ended(*nodes):
        until_votes(nodes[0], lives)
        victim = nodes.pop()
        before = ask(victim)
        victim.kill()
        place = places[2] if where == "at its address" else f"127.0.0.1:{free_port()}"
        again = Process("n2", None, seed=7, listen=place, peers=places[:2])
        with ended(again):
            back = again.hear("joined", AT_ONCE_S)
            assert (back.name, back.swarm) == ("n2", before.swarm)
            assert back.epoch > before.epoch
            lives["n2"] = back.epoch
            until_votes(nodes[0], lives)
            told = asyncio.run(status.ask(places[0], 10.0, PLAINTEXT))
            assert sorted(member.name for member in told.members) == ["n0", "n1", "n2"]
            done = together([*nodes, again])
            assert {state.name for state in done} == {"n0", "n1", "n2"}
            assert all(state.step > 0 for state in done)


def test_of_two_one_that_remembers_is_enough() -> None:
    """The founder is killed, comes back, and both vote again; then the other one."""
    nodes, places, lives = swarm_of("n0", "n1")
    with ExitStack() as over:
        over.enter_context(ended(*nodes))
        until_votes(nodes[0], lives)
        for index, name in enumerate(("n0", "n1")):
            nodes[index].kill()
            peers = [places[1 - index]]
            nodes[index] = Process(name, None, seed=7, listen=places[index], peers=peers)
            over.enter_context(ended(nodes[index]))
            lives[name] = nodes[index].hear("joined", AT_ONCE_S).epoch
            until_votes(nodes[1 - index], lives)
        together(nodes)


def test_a_live_member_keeps_its_name() -> None:
    nodes, places, _ = swarm_of("n0", "n1")
    with ended(*nodes):
        twin = Process("n1", None, peers=places[:1], join_timeout_s=1.0)
        with ended(twin), pytest.raises(AssertionError, match="'n1' is taken by a live peer at"):
            twin.hear("joined")
        together(nodes)

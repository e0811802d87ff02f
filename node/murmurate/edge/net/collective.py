"""Sums and broadcasts of one group, by torch.distributed, and the stores it needs to find itself.

Here alone torch.distributed opens connections of its own, past the credentials: it speaks plaintext
to whoever knows the port (`tests/policy/test_ports.py`, docs/synchronous.md). Its ports are bound
to the host this node listens at, so a run on loopback stays there.

gloo waits for a member that stands still until its own timeout is over, and cannot be told to stop.
So each wait here is cut into short ones, between which somebody looks whether all are still there;
a group that is given up is kept until its last operation has ended, because ending it earlier would
wait for that (measured: 17 s), and its buffer is never used again.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

from murmurate.core.synchronous.agreement import Claim, GroupPlan, read_claim, read_plan
from murmurate.core.synchronous.rules import groups_of
from murmurate.core.values.addresses import split_address, wildcard
from murmurate.errors import ConfigError, RemoteProtocolError, TransportError

LOOK_S = 0.25
"""Between two looks whether all are still there, while a sum is under way."""
POLL_S = 0.0001
"""Between two questions whether an operation on a device is done."""
CONNECT_S = 4.0
"""For all members of a plan to connect to each other."""
OPERATION_S = 30.0
"""After which gloo itself gives an operation up."""
STORE_S = 1.0
"""For a word with a store that answers."""
PROBE_S = 0.3
BACKLOG = 256

Watch = Callable[[], str]
"""Why not to wait any longer; empty: all are still there."""


class GroupBroken(TransportError):
    """A group that cannot be used any more: one of it is gone, or it never came about."""


def reachable(address: str) -> bool:
    """Whether somebody listens there: at once False if the process is gone."""
    try:
        with closing(socket.create_connection(split_address(address), PROBE_S)):
            return True
    except OSError:
        return False


class MeetingPlace:
    """A store of this node's own, where others put their claims, and visits to those of others."""

    def __init__(self, listen: str, told: str) -> None:
        """`listen`: the host to bind to; `told`: the one that others reach it at."""
        family = socket.AF_INET6 if ":" in listen else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.bind((listen, 0))
            self._socket.listen(BACKLOG)
        except OSError as error:
            self._socket.close()
            raise ConfigError(f"listen {listen}: no port for a group: {error.strerror}") from None
        port = self._socket.getsockname()[1]
        self.host = told if wildcard(listen) else listen
        """Where this node's own connections are bound to."""
        self.address = f"[{told}]:{port}" if ":" in told else f"{told}:{port}"
        self._own = TCPStore(
            listen if not wildcard(listen) else told,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=STORE_S),
            master_listen_fd=self._socket.detach(),
        )
        self._visited = ""
        self._other: Any = None
        self._answered: dict[str, int] = {}
        self._plans = 0

    # -- as the one at whose place all meet ------------------------------------------------------

    def claims(self, names: set[str]) -> dict[str, Claim]:
        """Of these, what each has claimed here since the last plan it was in."""
        found: dict[str, Claim] = {}
        for name in names:
            if (text := _get(self._own, _claim_key(name))) is None:
                continue
            try:
                claim = read_claim(text)
            except RemoteProtocolError:
                continue
            if claim.name == name and claim.number > self._answered.get(name, -1):
                found[name] = claim
        return found

    def next_key(self, name: str) -> str:
        """For the next plan that is drawn up here."""
        self._plans += 1
        return f"{name}/{self._plans}"

    def announce(self, plan: GroupPlan, claims: dict[str, Claim]) -> None:
        """Answer all the claims that went into a plan."""
        for claim in claims.values():
            self._answered[claim.name] = claim.number
            self._own.set(_answer_key(claim), plan.text())

    # -- as one of those who come ----------------------------------------------------------------

    def visit(self, address: str, claim: Claim) -> GroupPlan | None:
        """Claim a place there, and ask for the plan. TransportError: nobody answers."""
        try:
            if self._visited != address or self._other is None:
                self._other = self._connect(address)
                self._visited = address
            store = self._other
            store.set(_claim_key(claim.name), claim.text())
            text = _get(store, _answer_key(claim))
        except RuntimeError as error:
            self._other = None
            raise TransportError(f"{address}: {_first_line(error)}") from None
        return read_plan(text) if text is not None else None

    def _connect(self, address: str) -> Any:
        if not reachable(address):  # a store would be tried again and again, with warnings
            raise TransportError(f"{address}: nobody listens")
        host, port = split_address(address)
        return TCPStore(
            host,
            port,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=STORE_S),
        )

    def ready(self, address: str, plan: GroupPlan, name: str) -> bool | None:
        """Say there that I have the plan; whether all others have: None: one gave it up."""
        try:
            store = self.store(address)
            store.set(f"{plan.key}/ready/{name}", b"1")
            if store.check([f"{plan.key}/void"]):
                return None
            return bool(store.check([f"{plan.key}/ready/{each}" for each in plan.members]))
        except RuntimeError:
            return None

    def give_up(self, address: str, plan: GroupPlan) -> None:
        """Tell all that the plan is void."""
        with suppress(RuntimeError):
            self.store(address).set(f"{plan.key}/void", b"1")

    def store(self, address: str) -> Any:
        """The store that was visited there, or the own one."""
        return self._own if address == self.address else self._other


def _get(store: Any, key: str) -> bytes | None:
    return store.get(key) if store.check([key]) else None


def _claim_key(name: str) -> str:
    return f"claim/{name}"


def _answer_key(claim: Claim) -> str:
    return f"answer/{claim.name}/{claim.number}"


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


class Collective:
    """One group of processes, from the moment all have connected to its end."""

    def __init__(
        self,
        store: Any,
        key: str,
        rank: int,
        size: int,
        host: str,
        *,
        group: int = 0,
        device: torch.device | None = None,
    ) -> None:
        """`group`: sums go by groups of so many; 0: all at once. GroupBroken: not all came."""
        self.rank, self.size = rank, size
        self._device = device if device is not None else torch.device("cpu")
        self._host = host
        self._under_way: list[Any] = []
        self._inside: Any = None
        self._across: Any = None
        self._first = True
        self._split = 0 < group < size and group > 1
        try:
            self._all = self._connect(store, f"{key}/all", rank, size)
            if self._split:
                groups = groups_of(size, group)
                mine = groups[rank // group]
                self._first = mine[0] == rank
                self._inside = self._connect(
                    store, f"{key}/in/{mine[0]}", rank - mine[0], len(mine)
                )
                if self._first:
                    self._across = self._connect(store, f"{key}/across", rank // group, len(groups))
        except RuntimeError as error:
            raise GroupBroken(_first_line(error)) from None

    def _connect(self, store: Any, key: str, rank: int, size: int) -> Any:
        if size == 1:
            return None
        prefixed = PrefixStore(key, store)
        if self._device.type == "cuda" and dist.is_nccl_available():
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timedelta(seconds=OPERATION_S)
            return dist.ProcessGroupNCCL(prefixed, rank, size, options)
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname=self._host)]
        options._timeout = timedelta(seconds=CONNECT_S)
        options._threads = 2
        return ProcessGroupGloo(prefixed, rank, size, options)

    # -- what it does ----------------------------------------------------------------------------

    def sum(self, flat: torch.Tensor, watch: Watch) -> None:
        """In place, the same bits on all. GroupBroken: it did not come about, `flat` is void."""
        if not self._split:
            self._do(self._all, "allreduce", flat, dist.AllreduceOptions(), watch)
            return
        if self._inside is not None:
            self._do(self._inside, "reduce", flat, dist.ReduceOptions(), watch)
        if self._first:
            self._do(self._across, "allreduce", flat, dist.AllreduceOptions(), watch)
        if self._inside is not None:
            self._do(self._inside, "broadcast", flat, dist.BroadcastOptions(), watch)

    def broadcast(
        self, tensor: torch.Tensor, source: int, watch: Watch, *, waits_s: float = 0.0
    ) -> None:
        """What the source has, on all. `waits_s`: so long it may have something else to do yet."""
        options = dist.BroadcastOptions()
        options.rootRank = source
        self._do(self._all, "broadcast", tensor, options, watch, waits_s)

    def _do(
        self,
        group: Any,
        what: str,
        tensor: torch.Tensor,
        options: Any,
        watch: Watch,
        waits_s: float = 0.0,
    ) -> None:
        if group is None:
            return
        options.timeout = timedelta(seconds=OPERATION_S + waits_s)
        try:
            work = getattr(group, what)([tensor], options)
            self._under_way.append(work)
            if self._device.type == "cuda":
                until_done_on_a_device(group, work, watch)
            else:
                until_done(work, watch)
        except RuntimeError as error:
            raise GroupBroken(_first_line(error)) from None
        self._under_way.remove(work)

    # -- its end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of the connections: at once, or as soon as nothing is under way on them."""
        _bury(self)

    @property
    def at_rest(self) -> bool:
        return all(work.is_completed() for work in self._under_way)


_GIVEN_UP: list[Collective] = []


def _bury(group: Collective) -> None:
    _GIVEN_UP[:] = [each for each in _GIVEN_UP if not each.at_rest]
    if not group.at_rest:
        _GIVEN_UP.append(group)


def until_done(work: Any, watch: Watch) -> None:
    """gloo: a wait that is over leaves the operation under way, and may be begun again."""
    while True:
        try:
            work.wait(timedelta(seconds=LOOK_S))
            return
        except RuntimeError:
            if work.is_completed():
                raise
            if why := watch():
                raise GroupBroken(why) from None


def until_done_on_a_device(group: Any, work: Any, watch: Watch) -> None:
    """nccl: a wait without a limit does not wait here but on the device, and one with a limit ends
    the whole group when that is over. So it is asked instead, and a group that is given up is
    aborted: its kernels would otherwise keep the device for ever."""
    looked = time.monotonic()
    while not work.is_completed():
        if time.monotonic() - looked >= LOOK_S:
            if why := watch():
                if (abort := getattr(group, "abort", None)) is not None:
                    abort()
                raise GroupBroken(why)
            looked = time.monotonic()
        time.sleep(POLL_S)
    work.wait()  # raises what went wrong; what follows on this stream comes after it

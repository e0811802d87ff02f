"""The driver: the one interpreter of the core's effects, for nodes and for both simulators.

A peer (`core.gossip`) says what is to be done; the driver does it, in order, through ports: the
network, the disk, the lives of this node, and a watch that counts. It holds what is in between: the
inbox of checked messages that wait for whoever owns the weights, what is to leave the machine, and
what was consumed. Chance comes in with the peer, which is given an rng when it is made, and `now`
is an argument everywhere. So what the simulator verifies is what a node runs. Rules:

1. Effects are carried out in order. After a `Save` that is not durable, the rest of the list is
   dropped: it must not leave the machine.
2. A `Send` to oneself comes back at once, before the next effect of its list.
3. Nothing leaves the machine before `pump`: a list that ends with `Rejoin` takes with it what
   waited to leave.
4. A `Deliver` waits in the inbox until `fold`. Whoever sent it gets its place on the link back
   (`done`) when it was folded in or dropped, and always once. Earlier only where several of one
   sender wait: then it goes on sending, many are added up, and whoever folds rarely folds sums.
5. With `Rejoin` a life is over: inbox and outgoing are dropped, and the next life begins.

The driver has no lock and no thread. Whoever calls it from several threads holds a lock around each
call but `pump` and `give_back`, which call the network: these are given the lock, or need none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from murmurate.core.clock import Clock
from murmurate.core.effect import (
    Adopted,
    Applied,
    Deliver,
    Drop,
    Effect,
    Moved,
    Rejoin,
    Save,
    Send,
    Verdict,
)
from murmurate.core.gossip.protocol import Driven
from murmurate.core.intervals import Runs
from murmurate.core.message import Decided, Delta
from murmurate.errors import LocalProtocolError

DECIDED_MAX = 64
"""Decisions that wait to be folded in. They are small, so that no window of a link bounds them."""

PLACES_MAX = 2
"""So many messages of one sender wait and hold their places; with more its link would soon be full.
"""

Done = Callable[[], None]
"""Gives a received message's place on its link back."""
Seen = Applied | Adopted | Drop | Verdict | Moved
"""Effects that have happened already, and are only counted and shown."""
P = TypeVar("P", bound=Driven)


@dataclass(frozen=True, slots=True)
class Life(Generic[P]):
    """A peer whose epoch is durable, and whom it gets to know first."""

    peer: P
    seed_peers: Iterable[str] = ()


class NetworkPort(Protocol):
    """What carries messages away. They may be lost, delayed, doubled and reordered."""

    def meet(self, to: str) -> None:
        """Something will be posted or carried to that peer; called with the lock held."""

    def post(self, to: str, message: Any) -> None:
        """Send a small message."""

    def free(self, to: str) -> bool:
        """Whether the link to that peer can carry a large message now."""

    def carry(self, to: str, message: Any) -> bool:
        """Send what was taken; False: no `landed` and no `lost` will follow, it counts as landed.

        A network that cannot tell what it lost, or a message that does not fit: the other will ask
        for it again.
        """


class DiskPort(Protocol):
    """What survives this process."""

    def save(self, key: str, value: Any) -> bool:
        """Make a value durable; False: it is not, and must not be counted on."""


class LivesPort(Protocol[P]):
    """Where the next life comes from."""

    def begin_again(self, reason: str, now: float) -> Life[P] | None:
        """This life was closed by the others; None: the next one begins later, with `begin`."""


class WatchPort(Protocol):
    """Who counts what happened, and shows it."""

    def saw(self, effect: Seen) -> None: ...


class NoDisk:
    """The disk of a node that has none: it comes back as one that remembers nothing, and its word
    does not count beyond its life."""

    def save(self, key: str, value: Any) -> bool:
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports(Generic[P]):
    """The world, as far as a driver reaches it."""

    network: NetworkPort
    disk: DiskPort
    lives: LivesPort[P]
    watch: WatchPort


@dataclass(frozen=True, slots=True)
class Delivery:
    """A checked message that waits to change the weights."""

    sender: str
    message: Any
    done: Done


@dataclass(frozen=True, slots=True)
class Folded:
    """What became of one delivery."""

    changed: bool
    """The weights are other ones than before."""
    began: bool
    """It was the snapshot a life begins with: steps of before are void, and a checkpoint should be
    written soon. A snapshot taken later replaces weights as an update does."""


def nothing() -> None:
    """Nobody waits for this one."""


class Driver(Generic[P]):
    """One node's peer, life after life, and what goes in and out of it."""

    def __init__(self, ports: Ports[P]) -> None:
        self.ports = ports
        self.inbox: deque[Delivery] = deque()
        self.outgoing: deque[Send] = deque()
        self.consumed: deque[Done] = deque()
        self.torn = False
        """Whether something broke in between changing weights and clock."""
        self._peer: P | None = None

    @property
    def peer(self) -> P:
        if self._peer is None:
            raise LocalProtocolError("not started")
        return self._peer

    @property
    def alive(self) -> bool:
        """Whether there is a peer; its weights may still be on their way."""
        return self._peer is not None

    # -- what happens to the peer ----------------------------------------------------------------

    def begin(self, life: Life[P], now: float) -> None:
        """A life begins, the first or another."""
        self._peer = life.peer
        self.carry_out(life.peer.join(life.seed_peers, now), now)

    def leave(self, now: float) -> None:
        self.carry_out(self.peer.leave(now), now)

    def tick(self, now: float) -> None:
        self.carry_out(self.peer.tick(now), now)

    def heard(self, sender: str, now: float, *, snapshot: bool = False) -> None:
        """A sign of life that is not a whole message yet."""
        self.carry_out(self.peer.heard(sender, now, snapshot=snapshot), now)

    def receive(self, sender: str, message: Any, now: float, done: Done = nothing) -> None:
        """A message came. `RemoteProtocolError`: it is refused, and `done` is not called."""
        effects = self.peer.receive(sender, message, now)
        if not self.carry_out(effects, now, came=Delivery(sender, message, done)):
            self.consumed.append(done)

    def publish(
        self,
        delta: Delta,
        context: Clock,
        now: float,
        batches: Runs = (),
        *,
        written: bool = False,
    ) -> None:
        """Make an update of mine: it is folded in here, and passed on."""
        try:
            effects = self.peer.publish(delta, context, batches, written=written)
        except LocalProtocolError:
            raise  # before anything changed
        except BaseException:
            self.torn = True
            raise
        self.carry_out(effects, now)

    def fold(self, now: float) -> Folded | None:
        """Let the first delivery change the weights; None: nothing waits. For who owns them."""
        if not self.inbox:
            return None
        one, peer = self.inbox.popleft(), self.peer
        synced = peer.synced
        try:
            effects = peer.fold(one.sender, one.message, now)
        except BaseException:
            self.torn = True
            raise
        self.carry_out(effects, now)
        self.consumed.append(one.done)
        adopted = any(isinstance(effect, Adopted) for effect in effects)
        applied = any(isinstance(effect, Applied) for effect in effects)
        return Folded(changed=adopted or applied, began=adopted and not synced)

    # -- what leaves the machine -----------------------------------------------------------------

    def say(self, to: str, message: Any) -> None:
        """Let a message leave with those of the peer."""
        self.outgoing.append(Send(to, message))

    def pump(self, now: float, lock: AbstractContextManager[Any] | None = None) -> bool:
        """Hand over what waits: small messages first, then what each free link takes. Whether a
        link had something to take.

        The network is called without the lock: it may take its time over a large message.
        """
        lock = lock or nullcontext()
        network = self.ports.network
        self.give_back()
        with lock:
            if self._peer is None:
                return False
            sends = list(self.outgoing)
            self.outgoing.clear()
            for send in sends:
                network.meet(send.to)
            ready = self._peer.ready(now)
        for send in sends:
            network.post(send.to, send.message)
        for to in ready:
            while network.free(to):
                with lock:
                    if not self.alive:
                        return True
                    network.meet(to)
                    taken = self.peer.take(to, now)
                if taken is None:
                    break
                if not network.carry(to, taken):
                    with lock:
                        self.peer.landed(to, taken)
        return bool(ready)

    def give_back(self) -> None:
        """Tell the links which of their messages were consumed; without the lock."""
        while self.consumed:
            self.consumed.popleft()()

    # -- effects ---------------------------------------------------------------------------------

    def carry_out(
        self, effects: Iterable[Effect], now: float, came: Delivery | None = None
    ) -> bool:
        """In order, up to what fails. Whether the message that `came` waits in the inbox now."""
        peer, waits = self.peer, False
        for effect in effects:
            match effect:
                case Send(to, message) if to == peer.name:
                    self.carry_out(peer.receive(to, message, now), now)
                    if self._peer is not peer:
                        break  # what follows is of a life that is over
                case Send():
                    self.outgoing.append(effect)
                case Deliver(sender, message):
                    if came is not None and message is came.message:
                        waits = self._deliver(came)
                    else:
                        self._deliver(Delivery(sender, message, nothing))
                case Save(key, value):
                    if not self.save(key, value):
                        break  # what comes next must not leave the machine
                case Rejoin(reason):
                    self.begin_again(reason, now)
                    break
                case _:
                    self.ports.watch.saw(effect)
        return waits

    def save(self, key: str, value: Any) -> bool:
        """Make a value durable; False: it is not, and nothing may leave that counts on it."""
        return self.ports.disk.save(key, value)

    def _deliver(self, one: Delivery) -> bool:
        if isinstance(one.message, Decided):
            waiting = sum(isinstance(each.message, Decided) for each in self.inbox)
            if waiting >= DECIDED_MAX:
                return False  # it is told again
        if self._beside(one):
            return False  # it waits, and its place is free
        self.inbox.append(one)
        return True

    def _beside(self, one: Delivery) -> bool:
        """Let it wait beside others of its sender without a place on the link, by itself or added
        to the last of them, as the peer says.

        All of them give their places back then, for links tell of them in order. With full ones
        nothing would come until the next fold, and then all that was made since the last: who folds
        rarely would always be one of its steps behind.
        """
        places = [at for at, each in enumerate(self.inbox) if each.sender == one.sender]
        if len(places) < PLACES_MAX:
            return False
        waiting = [self.inbox[at].message for at in places]
        kept = self.peer.beside(waiting, one.message)
        if kept is None:
            return False
        if kept is one.message:
            self.inbox.append(replace(one, done=nothing))
        else:
            self.inbox[places[-1]] = replace(self.inbox[places[-1]], message=kept)
        for at in places:
            each = self.inbox[at]
            if each.done is not nothing:
                self.consumed.append(each.done)
                self.inbox[at] = replace(each, done=nothing)
        return True

    def begin_again(self, reason: str, now: float) -> None:
        """A life is over: what waited in it is dropped, and the next one begins."""
        self.consumed.extend(one.done for one in self.inbox)
        self.inbox.clear()
        self.outgoing.clear()
        life = self.ports.lives.begin_again(reason, now)
        self._peer = None
        if life is not None:
            self.begin(life, now)

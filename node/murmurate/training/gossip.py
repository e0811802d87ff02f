"""Mode `gossip`: what was asked for is checked and put together, and becomes a `Swarm`.

Everything that can be wrong without a peer is said before one is asked.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from murmurate.core import buffers
from murmurate.core.admission import NAME_BYTES_MAX, NORM_MAX
from murmurate.core.codecs import span
from murmurate.core.codecs.choice import parse_codec
from murmurate.core.figures.update_intervals import UpdateIntervals
from murmurate.core.gossip.ways import (
    WAYS,
    data_problem,
    every_problem,
    every_remark,
    mixes_weights,
    strength_problem,
)
from murmurate.core.layout import Layout
from murmurate.core.membership.timing import Timing
from murmurate.core.publishing.likeness import Likeness
from murmurate.core.publishing.rhythm import Rhythm
from murmurate.core.publishing.rule import Making
from murmurate.core.publishing.turns import Turns
from murmurate.core.topology import TOPOLOGIES
from murmurate.core.values.limits import name_problem
from murmurate.core.values.names import ordinal
from murmurate.edge.disk.checkpointer import Keeper
from murmurate.edge.net.credentials import Credentials
from murmurate.edge.net.dns import is_named
from murmurate.edge.net.own_address import address_towards
from murmurate.edge.net.transport import Transport
from murmurate.edge.runtime.malloc import keep_memory
from murmurate.edge.runtime.node_state import Settings
from murmurate.edge.runtime.runtime import Runtime
from murmurate.errors import ConfigError
from murmurate.training.asked import check_kinds, peer_problem
from murmurate.training.checkpoints import Checkpoints
from murmurate.training.coding import coding_for, encoder_for
from murmurate.training.gain import without_bound
from murmurate.training.gains import OptimizerGains
from murmurate.training.loop_parts import check_free, check_name
from murmurate.training.loop_watch import LoopWatch
from murmurate.training.moments import layout_of
from murmurate.training.publisher import Publisher
from murmurate.training.sight import ModelSight
from murmurate.training.statistics import ModelStatistics, first_weights
from murmurate.training.swarm import Swarm
from murmurate.training.training_state import Instant
from murmurate.watch.pages import pages

log = logging.getLogger("murmurate")

THIS_MACHINE = "127.0.0.1:0"
"""Where a node listens unless it is said otherwise."""
LARGE_BYTES = 16 << 20
"""A larger model is published in turns: memory counts more than how soon each step is out."""
GOODBYE_S = 2.0
"""For the leave of one that is told to stop while it joins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GossipOptions:
    """What a script asks of `murmurate.join` in mode `gossip`; each is explained there."""

    run: str
    peers: Sequence[str]
    name: str | None
    listen: str
    advertise: str | None
    rule: str
    strength: float | None
    every: int | None
    data: str
    topology: str
    codec: str
    found: bool | None
    insecure: bool
    checkpoint: str | os.PathLike[str] | None
    checkpoint_s: float
    timing: Timing | None
    join_timeout_s: float
    wait_for: int
    seed: int | None
    metrics: str | None
    credentials: Credentials
    """What its ports and channels are opened with."""

    @property
    def own_name(self) -> str:
        """The name that was asked for, or one made of host and process."""
        return self.name if self.name is not None else f"{socket.gethostname()}-{os.getpid()}"

    DEFAULT_RULE: ClassVar[str] = "shared"

    def check(self) -> None:
        """Raise the first thing that is wrong."""
        check_kinds(self)
        codec = self.codec
        for good, problem in (
            (self.rule in WAYS, f"rule {self.rule!r}: expected {' or '.join(map(repr, WAYS))}"),
            (
                self.topology in TOPOLOGIES,
                f"topology {self.topology!r}: expected one of {', '.join(TOPOLOGIES)}",
            ),
            (
                parse_codec(codec).plain or not mixes_weights(self.rule),
                f"codec {codec!r}: rule {self.rule!r} exchanges weights as they are: use 'fp32'",
            ),
        ):
            if not good:
                raise ConfigError(problem)
        if what := every_problem(self.every):
            raise ConfigError(f"every {self.every!r}: {what}")
        if what := data_problem(self.rule, self.data):
            raise ConfigError(f"data {self.data!r}: {what}")
        self.check_common()

    def check_common(self) -> None:
        """The same of what is wrong in every mode that has peers."""
        check_kinds(self)
        for peer in self.peers:
            if what := peer_problem(peer):
                raise ConfigError(f"peers {peer!r}: {what}")
        for good, problem in (
            (
                bool(self.run) and not name_problem(self.run, NAME_BYTES_MAX),
                f"run {self.run!r}: expected a name",
            ),
            (
                self.join_timeout_s > 0,
                f"join_timeout_s {self.join_timeout_s}: expected more than 0",
            ),
            (self.wait_for >= 1, f"wait_for {self.wait_for}: expected 1 or more members"),
            (self.checkpoint_s > 0, f"checkpoint_s {self.checkpoint_s}: expected more than 0"),
        ):
            if not good:
                raise ConfigError(problem)
        if what := strength_problem(self.rule, self.strength):
            raise ConfigError(f"strength {self.strength!r}: {what}")
        if what := name_problem(self.own_name, NAME_BYTES_MAX):
            raise ConfigError(f"name: {what}")
        if len(set(self.peers)) != len(self.peers):
            raise ConfigError(f"peers {list(self.peers)}: one stands there twice")

    def may_found(self) -> bool:
        """Whether this node founds the run where nobody is in it yet."""
        if self.found is not None:
            return self.found
        named = any(is_named(peer) for peer in self.peers)
        return not self.peers or (named and ordinal(self.own_name) == 0)


def start(
    model: torch.nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    options: GossipOptions,
    transport: Transport | None = None,
    beside: Mapping[str, Any] | None = None,
    *,
    hooked: bool = True,
) -> Swarm:
    """Join the run, and return once its weights are in the model. `hooked` false: whoever calls
    this calls `Swarm.after_step`, too, and no gradient is without numbers."""
    options.check()
    way = WAYS[options.rule]
    for each in filter(without_bound, optimizers):
        raise ConfigError(
            f"optimizer {type(each).__name__}: its steps have no bound, and on weights that"
            " others change, too, they diverge: use another, such as Adam or SGD"
        )
    layout, parameters = layout_of(model, optimizers, options.data)
    check_free(parameters)
    if options.name is None and options.checkpoint is None:
        check_name(options.run, options.own_name)
    codec = parse_codec(options.codec)
    encoder = encoder_for(codec, layout)
    turns = turns_for(layout) if way.sends_updates and encoder is None else None
    read = options.may_found() or options.checkpoint is not None or way.needs_first_weights
    weights = _first_weights(layout, parameters, model, read=read)
    keep_memory()
    if transport is None:
        transport = transport_for(options)
    instant = Instant(model, optimizers, layout, parameters, beside)
    keeper = _keeper(options, layout)
    update_bytes = span.turn_bytes(layout.size) if turns is not None else 0
    settings = _settings(options, keeper, encoded=encoder is not None, update_bytes=update_bytes)
    runtime = Runtime(settings, layout, weights, transport, keeper)
    del weights  # a snapshot may bring others, and then these are a model in memory for nothing
    if options.metrics is not None:
        runtime.serve(pages(runtime, options.metrics, options.credentials))
    try:
        if keeper is not None and keeper.restored is not None:
            instant.check(keeper.restored)
        runtime.start()
    except BaseException:
        if keeper is not None:
            keeper.close()
        raise
    gain = OptimizerGains(optimizers, parameters)
    every = options.every or way.steps(options.data, gain.kind)
    for remark in filter(None, (way.warning, every_remark(options.rule, options.every))):
        log.warning("%s", remark)
    places = turns.places if turns else (slice(None),)
    likeness = runtime.training.likeness = Likeness(layout.trained, places[0])
    rule = way.publishing()(
        Making(
            size=layout.size,
            dtype=layout.dtype,
            places=places,
            every=every,
            data=options.data,
            likeness=likeness,
        )
    )
    publisher = Publisher(
        runtime.training,
        layout,
        parameters,
        rule,
        gain,
        every=every,
        rhythm=Rhythm(every) if options.every is None and every > 1 else None,
        coding=coding_for(codec, layout, rule, cautious=turns is None),
        turns=turns,
        statistics=ModelStatistics(model, layout, mixed=not way.sends_updates),
    )
    publisher.placed.mixed = not way.sends_updates
    checkpoints = Checkpoints(keeper, instant, publisher, runtime.training, runtime.figures)
    watch = LoopWatch(runtime.figures.name, model, parameters, optimizers)
    sight = ModelSight(model, publisher, watch)
    swarm = Swarm(runtime, layout, parameters, publisher, checkpoints, sight)
    if options.every and way.sends_updates:
        swarm.intervals = UpdateIntervals(options.every)
    swarm.hook(optimizers if hooked else (), gain)
    swarm.credentials = options.credentials
    try:
        swarm.enter(options.join_timeout_s, options.wait_for)
    except BaseException as error:
        # Told to stop, and known to the others already: they should not have to take it for dead.
        swarm.leave(timeout_s=0.0 if isinstance(error, Exception) else GOODBYE_S)
        raise
    return swarm


def turns_for(layout: Layout) -> Turns | None:
    """A large model is published a part at a time. Not where parameters have fewer bits than the
    weights: what waits for its turn would not be in them; and float64 is not sent in parts."""
    if layout.nbytes <= LARGE_BYTES or layout.narrow or layout.dtype != torch.float32:
        return None
    return Turns(span.spans(layout.size))


def _first_weights(
    layout: Layout, parameters: list[torch.nn.Parameter], model: torch.nn.Module, *, read: bool
) -> torch.Tensor:
    """The model's own weights, if they are read at all: else a snapshot will bring others, and what
    is in the model now is of no account."""
    if not read:
        return buffers.empty(layout.size, layout.dtype)
    layout.line_up(parameters)
    weights = first_weights(layout, parameters, model)
    if not float(torch.linalg.vector_norm(weights)) <= NORM_MAX:
        raise ConfigError("model: its weights are not finite")
    return weights


def _keeper(options: GossipOptions, layout: Layout) -> Keeper | None:
    if options.checkpoint is None:
        return None
    return Keeper(
        options.checkpoint,
        every_s=options.checkpoint_s,
        run=options.run,
        rule=options.rule,
        asked=options.name or "",  # a name that was made up is no wish to be compared
        layout=layout,
    )


def _settings(
    options: GossipOptions, keeper: Keeper | None, *, encoded: bool, update_bytes: int
) -> Settings:
    return Settings(
        run=options.run,
        name=(keeper.name if keeper is not None else "") or options.own_name,
        peers=tuple(options.peers),
        found=options.may_found(),
        careful=options.found is None,
        rule=options.rule,
        strength=_strength(options),
        data=options.data,
        encoded=encoded,
        update_bytes=update_bytes,
        topology=options.topology,
        timing=options.timing or Timing(),
        join_timeout_s=options.join_timeout_s,
        seed=options.seed,
        known_port=not options.listen.endswith(":0"),
    )


def _strength(options: GossipOptions) -> float:
    usual = WAYS[options.rule].strength or 0.0
    return usual if options.strength is None else options.strength


def _listen(options: GossipOptions) -> str:
    """Where to listen. If nobody said where, and a peer is on another machine: at the address by
    which that one is reached, or what is told to it would lead it to itself."""
    towards = address_towards(options.peers) if options.listen == THIS_MACHINE else None
    if towards is None or options.advertise is not None:
        return options.listen
    peer, own = towards
    if not options.insecure:
        raise ConfigError(
            f"peers {peer}: it is on another machine, so this node would listen at {own}; what is"
            " sent between them can be read and changed on the way: say insecure=True if that is"
            " all right"
        )
    return f"[{own}]:0" if ":" in own else f"{own}:0"


def transport_for(options: GossipOptions) -> Transport:
    """What carries this node's messages; ConfigError: where it would listen is not allowed."""
    from murmurate.edge.net.grpc_transport import GrpcTransport

    listen = _listen(options)
    host = listen.rpartition(":")[0].strip("[]")
    if not options.insecure and not (
        host == "localhost" or host.startswith("127.") or host == "::1"
    ):
        raise ConfigError(
            f"listen {listen!r}: beyond this machine what is sent can be read and changed by"
            " anybody on the way; say insecure=True if that is all right"
        )
    return GrpcTransport(listen, advertise=options.advertise, credentials=options.credentials)

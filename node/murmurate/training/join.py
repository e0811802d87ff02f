"""`murmurate.join()`: one call for every mode; what it returns depends on the mode."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, overload

import torch

from murmurate.core.membership.timing import Timing
from murmurate.core.synchronous.rules import ALLREDUCE, HOGWILD, RULES_IN_STEP
from murmurate.core.values.member_half import RULES_OF
from murmurate.edge.net.credentials import PLAINTEXT, Credentials
from murmurate.edge.net.transport import Transport
from murmurate.errors import ConfigError
from murmurate.training.asked import check_kinds
from murmurate.training.gossip import GossipOptions, start
from murmurate.training.loop_parts import optimizers_of, states_of
from murmurate.training.swarm import Swarm

if TYPE_CHECKING:
    from murmurate.training.hogwild import HogwildSwarm
    from murmurate.training.member import Member
    from murmurate.training.synchronous import SynchronousSwarm


@overload
def join(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    run: str,
    mode: Literal["ist", "hub"],
    coordinator: str,
    name: str | None = None,
    width: float = 0.0,
    memory: int = 0,
    example: Any = None,
    join_timeout_s: float = 30.0,
    metrics: str | None = None,
    _credentials: Credentials = PLAINTEXT,
) -> Member: ...
@overload
def join(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    run: str,
    mode: Literal["allreduce"],
    peers: Sequence[str] = (),
    name: str | None = None,
    listen: str = "127.0.0.1:0",
    advertise: str | None = None,
    rule: str = "flat",
    group: int | None = None,
    regroup: int | None = None,
    coordinator: str | None = None,
    found: bool | None = None,
    insecure: bool = False,
    timing: Timing | None = None,
    join_timeout_s: float = 30.0,
    seed: int | None = None,
    metrics: str | None = None,
    _transport: Transport | None = None,
    _credentials: Credentials = PLAINTEXT,
) -> SynchronousSwarm: ...
@overload
def join(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    run: str,
    mode: Literal["hogwild"],
    peers: Sequence[str] = (),
    name: str | None = None,
    listen: str = "127.0.0.1:0",
    advertise: str | None = None,
    rule: str = "hogwild",
    found: bool | None = None,
    insecure: bool = False,
    timing: Timing | None = None,
    join_timeout_s: float = 30.0,
    seed: int | None = None,
    metrics: str | None = None,
    _transport: Transport | None = None,
    _credentials: Credentials = PLAINTEXT,
) -> HogwildSwarm: ...
@overload
def join(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    run: str,
    peers: Sequence[str] = (),
    name: str | None = None,
    listen: str = "127.0.0.1:0",
    advertise: str | None = None,
    mode: Literal["gossip"] = "gossip",
    rule: str = "shared",
    strength: float | None = None,
    every: int | None = None,
    data: str = "same",
    topology: str = "full",
    codec: str = "auto",
    found: bool | None = None,
    insecure: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_s: float = 30.0,
    state: Any = None,
    timing: Timing | None = None,
    join_timeout_s: float = 30.0,
    wait_for: int = 1,
    seed: int | None = None,
    metrics: str | None = None,
    _transport: Transport | None = None,
    _credentials: Credentials = PLAINTEXT,
) -> Swarm: ...
def join(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    run: str,
    peers: Sequence[str] = (),
    name: str | None = None,
    listen: str = "127.0.0.1:0",
    advertise: str | None = None,
    mode: str = "gossip",
    rule: str = "shared",
    strength: float | None = None,
    every: int | None = None,
    data: str = "same",
    topology: str = "full",
    codec: str = "auto",
    found: bool | None = None,
    insecure: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_s: float = 30.0,
    state: Any = None,
    timing: Timing | None = None,
    join_timeout_s: float = 30.0,
    wait_for: int = 1,
    seed: int | None = None,
    metrics: str | None = None,
    coordinator: str | None = None,
    width: float = 0.0,
    memory: int = 0,
    example: Any = None,
    group: int | None = None,
    regroup: int | None = None,
    _transport: Transport | None = None,
    _credentials: Credentials = PLAINTEXT,
) -> Swarm | Member | SynchronousSwarm | HogwildSwarm:
    """Train `model` together with the peers of this run; returns once it has their weights.

    model      any nn.Module, compiled or wrapped or not: names are compared without a wrapper's
    optimizer  the one that trains it, or a list of them, as for a generator and a critic
    run        peers of one run exchange weights; others are refused
    peers      addresses of a few members, or "dns:NAME:PORT": all that the name stands for, now
               and later; none: this node founds the run with its own weights
    name       unique in the run (default: host and process)
    listen     where others reach this node; beyond loopback it takes `insecure=True`. Unless said
               otherwise: this machine only, or where a peer on another machine reaches it
    advertise  the address told to others, where it is not the one listened on
    rule       "shared": exchange updates, with one momentum for all: the rate that suits one node
               suits any number (docs/convergence.md); "sum": your optimizer's own steps, added up
               (paper 000); "capped": that sum, kept from growing with the number of peers;
               "average": mix weights. For studies "scaled", "compensated" and "bound": each
               receiver decides by staleness, so replicas are no longer equal
    strength   of those three: the power of "scaled" (default 1), λ of "compensated" (2), the
               largest staleness that "bound" takes (8)
    every      local steps per update (default with "shared": 4, with Adam 2, with data="own" 1,
               and 16 where it cannot be read what a step gained (docs/convergence.md); else 1)
    data       "same": the peers' data are alike; "own": each has its own kind, such as other labels
    topology   whom this node speaks to: full, ring, k-regular, exponential,
               one-peer-exponential, star or tree
    codec      how this node's updates are sent: "fp32" (as they are), "bf16", "int8", "topk" or
               "topk(0.02)"; every peer reads all of them; "auto": as they are, and in fewer bytes
               where links would take many steps for one (docs/codecs.md)
    found      with `peers`: found the run if none of them is in a swarm yet (default: no; with
               "dns:" the node whose name ends in -0 does, once it is sure that there is none)
    insecure   allow plaintext on a network: anybody there can read and change what is sent
    checkpoint a folder of this node's own: it goes on from what is there, under the same name, and
               writes a checkpoint every `checkpoint_s` seconds (docs/checkpoints.md)
    state      what else goes into the checkpoint and back: a scheduler, a scaler, a list or a
               dictionary of such; with a scheduler the optimizer's rate is restored, too, without
               one it is the script's
    wait_for   begin when so many members are here, this one included, so that nobody has done its
               steps before the others are loaded; a run that is under way is not waited for
    timing     `Timing.lan()` (default) or `Timing.wan()`
    metrics    where to serve /metrics, /livez, /readyz and a page for people, such as
               "127.0.0.1:9100" (docs/metrics.md); port 0 takes a free one, None serves nothing

    mode="ist" trains a subnet of the model for a coordinator, which decides by which rule
    (docs/ist.md). Returns a `Member`: call its `model` in the loop. Besides run, name and metrics:

    coordinator  its address
    width        how large a subnet, relative to the others'; 0: as this process is fast
    memory       bytes for the subnet, its gradients and one buffer of the optimizer; 0: enough
    example      what the model is called with, a small batch will do; None: its first call

    mode="allreduce" trains in step with the peers: before each step the gradient becomes the mean
    of all (docs/synchronous.md). Returns a `SynchronousSwarm`. Of the above it has run, peers,
    name, listen, advertise, found, insecure, timing and metrics, and

    rule         "flat" (the default): one sum over all; "hierarchical": by groups, the same mean;
                 "groups": in step inside groups, by the number at the end of `name`; gossip across;
                 "groups-ea-wild": the same, across by exchanges with a hub of rule "ea-wild"
    group        with the last three: members in a group (default 4)
    regroup      with groups: after so many steps, who is in which is drawn anew (default: never)
    coordinator  "groups-ea-wild": the hub's address

    mode="hub" trains the whole model for a hub, by the hub's rule (docs/hub.md): the loop goes on
    calling its own model. The weights are the hub's from the first step on. Returns a `Member`;
    besides run, name and metrics it takes `coordinator`.

    mode="hogwild" trains one set of weights in the memory that processes of this machine share,
    without a lock (docs/synchronous.md). Returns a `HogwildSwarm`; it has the same of the above,
    but no `group`.
    """
    optimizers = optimizers_of(model, optimizer)
    beside = states_of(state)
    if mode in ("ist", "hub"):
        others = {"peers": (peers, ()), "rule": (rule, "shared"), "checkpoint": (checkpoint, None)}
        for key, (value, default) in others.items():
            if value != default:
                raise ConfigError(f"{key} {value!r}: mode {mode!r} has none, the coordinator does")
        if len(optimizers) > 1:
            raise ConfigError(f"optimizer: mode {mode!r} takes one")
        if coordinator is None:
            raise ConfigError(f"coordinator: mode {mode!r} needs its address")
        if mode == "hub" and (width or memory or example is not None):
            raise ConfigError("width, memory, example: only with mode 'ist', which deals subnets")
        check_kinds(
            SimpleNamespace(
                run=run,
                name=name,
                coordinator=coordinator,
                join_timeout_s=join_timeout_s,
                metrics=metrics,
                peers=peers,
            )
        )
        from murmurate.training.member import (
            Member,  # and all of its partitions: 80 ms for who needs none
        )

        return Member(
            model,
            optimizers[0],
            run=run,
            coordinator=coordinator,
            name=name,
            width=width,
            memory_bytes=memory,
            example=example,
            join_timeout_s=join_timeout_s,
            metrics=metrics,
            mode=mode,
            credentials=_credentials,
        )
    if mode not in ("gossip", *RULES_IN_STEP):
        known = ", ".join(map(repr, ("gossip", *RULES_OF, *RULES_IN_STEP)))
        raise ConfigError(f"mode {mode!r}: expected one of {known}")
    if coordinator is not None and mode != ALLREDUCE:
        raise ConfigError(f"coordinator {coordinator!r}: only with mode 'ist' or 'hub'")
    options = GossipOptions(
        run=run,
        peers=peers,
        name=name,
        listen=listen,
        advertise=advertise,
        rule=rule,
        strength=strength,
        every=every,
        data=data,
        topology=topology,
        codec=codec,
        found=found,
        insecure=insecure,
        checkpoint=checkpoint,
        checkpoint_s=checkpoint_s,
        timing=timing,
        join_timeout_s=join_timeout_s,
        wait_for=wait_for,
        seed=seed,
        metrics=metrics,
        credentials=_credentials,
    )
    if mode == ALLREDUCE:
        from murmurate.training import allreduce

        if len(optimizers) > 1:
            raise ConfigError("optimizer: mode 'allreduce' takes one")
        return allreduce.start(
            model,
            optimizers[0],
            options,
            group,
            _transport,
            regroup=regroup,
            coordinator=coordinator,
        )
    for of_groups, number in (("group", group), ("regroup", regroup)):
        if number is not None:
            raise ConfigError(f"{of_groups} {number}: only with mode 'allreduce'")
    if mode == HOGWILD:
        from murmurate.training import hogwild

        if len(optimizers) > 1:
            raise ConfigError("optimizer: mode 'hogwild' takes one")
        return hogwild.start(model, optimizers[0], options, _transport)
    return start(model, optimizers, options, _transport, beside)

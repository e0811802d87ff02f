"""`murmurate.join()`: what was asked for is checked and put together; then it is a `Swarm`.

Everything that can be wrong without a peer is said before one is asked.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import torch

from murmurate.core import buffers
from murmurate.core.clock import name_problem
from murmurate.core.gate import NAME_BYTES_MAX, NORM_MAX
from murmurate.core.layout import Layout
from murmurate.core.timing import Timing
from murmurate.core.topology import TOPOLOGIES
from murmurate.core.turns import Turns
from murmurate.errors import ConfigError
from murmurate.instant import Instant
from murmurate.io import span
from murmurate.io.codec import Encoder
from murmurate.io.codec_choice import Choice, parse_codec
from murmurate.io.malloc import keep_memory
from murmurate.io.names import is_named
from murmurate.io.transport import Transport
from murmurate.keeper import Keeper
from murmurate.runtime import Runtime, Settings
from murmurate.session import Swarm
from murmurate.values import ordinal
from murmurate.watch.pages import pages

if TYPE_CHECKING:
    from murmurate.member import Member

LARGE_BYTES = 16 << 20
"""A larger model is published in turns: memory counts more than how soon each step is out."""
GOODBYE_S = 2.0
"""For the leave of one that is told to stop while it joins."""


@overload
def join(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    run: str,
    mode: Literal["ist"],
    coordinator: str,
    name: str | None = None,
    width: float = 0.0,
    memory: int = 0,
    example: Any = None,
    join_timeout_s: float = 30.0,
    metrics: str | None = None,
) -> Member: ...
@overload
def join(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    run: str,
    peers: Sequence[str] = (),
    name: str | None = None,
    listen: str = "127.0.0.1:0",
    advertise: str | None = None,
    mode: str = "gossip",
    rule: str = "sum",
    every: int = 1,
    topology: str = "full",
    codec: str = "fp32",
    found: bool | None = None,
    insecure: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_s: float = 30.0,
    timing: Timing | None = None,
    join_timeout_s: float = 30.0,
    seed: int | None = None,
    metrics: str | None = None,
    _transport: Transport | None = None,
) -> Swarm: ...
def join(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    run: str,
    peers: Sequence[str] = (),
    name: str | None = None,
    listen: str = "127.0.0.1:0",
    advertise: str | None = None,
    mode: str = "gossip",
    rule: str = "sum",
    every: int = 1,
    topology: str = "full",
    codec: str = "fp32",
    found: bool | None = None,
    insecure: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_s: float = 30.0,
    timing: Timing | None = None,
    join_timeout_s: float = 30.0,
    seed: int | None = None,
    metrics: str | None = None,
    coordinator: str | None = None,
    width: float = 0.0,
    memory: int = 0,
    example: Any = None,
    _transport: Transport | None = None,
) -> Swarm | Member:
    """Train `model` together with the peers of this run; returns once it has their weights.

    run        peers of one run exchange weights; others are refused
    peers      addresses of a few members, or "dns:NAME:PORT": all that the name stands for, now
               and later; none: this node founds the run with its own weights
    name       unique in the run (default: host and process)
    listen     where others reach this node; beyond loopback it takes `insecure=True`
    advertise  the address told to others, where it is not the one listened on
    rule       "sum": exchange updates, all end with the same weights; "average": mix weights
    every      local steps per update
    topology   whom this node speaks to: full, ring, k-regular, exponential,
               one-peer-exponential, star or tree
    codec      how this node's updates are sent: "fp32" (as they are), "bf16", "int8", "topk" or
               "topk(0.02)"; every peer reads all of them
    found      with `peers`: found the run if none of them is in a swarm yet (default: no; with
               "dns:" the node whose name ends in -0 does, once it is sure that there is none)
    insecure   allow plaintext on a network: anybody there can read and change what is sent
    checkpoint a folder of this node's own: it goes on from what is there, under the same name, and
               writes a checkpoint every `checkpoint_s` seconds (docs/checkpoints.md)
    timing     `Timing.lan()` (default) or `Timing.wan()`
    metrics    where to serve /metrics, /livez, /readyz and a page for people, such as
               "127.0.0.1:9100" (docs/metrics.md); port 0 takes a free one, None serves nothing

    mode="ist" trains a subnet of the model for a coordinator, which decides by which rule
    (docs/ist.md). Returns a `Member`: call its `model` in the loop. Besides run, name and metrics:

    coordinator  its address
    width        how large a subnet, relative to the others'; 0: as this process is fast
    memory       bytes for the subnet, its gradients and one buffer of the optimizer; 0: enough
    example      what the model is called with, a small batch will do; None: its first call
    """
    if mode == "ist":
        others = {"peers": (peers, ()), "rule": (rule, "sum"), "checkpoint": (checkpoint, None)}
        for key, (value, default) in others.items():
            if value != default:
                raise ConfigError(f"{key} {value!r}: mode 'ist' has none, the coordinator does")
        if coordinator is None:
            raise ConfigError("coordinator: mode 'ist' needs its address")
        from murmurate.member import Member  # and all of its partitions: 80 ms for who needs none

        return Member(
            model,
            optimizer,
            run=run,
            coordinator=coordinator,
            name=name,
            width=width,
            memory_bytes=memory,
            example=example,
            join_timeout_s=join_timeout_s,
            metrics=metrics,
        )
    problems = [
        (mode == "gossip", f"mode {mode!r}: expected 'gossip' or 'ist'"),
        (coordinator is None, f"coordinator {coordinator!r}: only with mode 'ist'"),
        (rule in ("sum", "average"), f"rule {rule!r}: expected 'sum' or 'average'"),
        (topology in TOPOLOGIES, f"topology {topology!r}: expected one of {', '.join(TOPOLOGIES)}"),
        (every >= 1, f"every {every}: expected 1 or more local steps"),
        (bool(run) and not name_problem(run, NAME_BYTES_MAX), f"run {run!r}: expected a name"),
        (
            rule == "sum" or parse_codec(codec).plain,
            f"codec {codec!r}: rule {rule!r} exchanges weights as they are: use 'fp32'",
        ),
        (join_timeout_s > 0, f"join_timeout_s {join_timeout_s}: expected more than 0"),
        (checkpoint_s > 0, f"checkpoint_s {checkpoint_s}: expected more than 0"),
        (not isinstance(peers, str), f"peers {peers!r}: expected a list of addresses"),
    ]
    asked, name = name or "", name if name is not None else f"{socket.gethostname()}-{os.getpid()}"
    if what := name_problem(name, NAME_BYTES_MAX):
        problems.append((False, f"name: {what}"))
    if len(set(peers)) != len(peers):
        problems.append((False, f"peers {list(peers)}: one stands there twice"))
    for good, problem in problems:
        if not good:
            raise ConfigError(problem)
    layout, parameters = Layout.of(model)
    encoder = _encoder(parse_codec(codec), layout)
    turns = None
    if rule == "sum" and encoder is None:
        turns = _turns(layout)
    careful = found is None
    found = _may_found(name, peers) if found is None else found
    if found or checkpoint is not None or rule != "sum":
        layout.line_up(parameters)
        weights = layout.gather(parameters)
        if not float(torch.linalg.vector_norm(weights)) <= NORM_MAX:
            raise ConfigError("model: its weights are not finite")
    else:  # a snapshot will bring them: what is in the model now is of no account
        weights = buffers.empty(layout.size, layout.dtype)
    keep_memory()
    if _transport is None:
        _transport = _grpc(listen, advertise, peers, insecure, layout)
    instant = Instant(model, optimizer, layout, parameters)
    keeper = None
    if checkpoint is not None:
        keeper = Keeper(
            checkpoint, every_s=checkpoint_s, run=run, rule=rule, asked=asked, layout=layout
        )
    runtime = Runtime(
        Settings(
            run=run,
            name=keeper.name or name if keeper is not None else name,
            peers=tuple(peers),
            found=found,
            careful=careful,
            rule=rule,
            encoded=encoder is not None,
            update_bytes=span.turn_bytes(layout.size) if turns is not None else 0,
            topology=topology,
            timing=timing or Timing(),
            join_timeout_s=join_timeout_s,
            seed=seed,
        ),
        layout,
        weights,
        _transport,
        keeper,
    )
    if metrics is not None:
        runtime.pages = pages(runtime, metrics)
    try:
        if keeper is not None and keeper.restored is not None:
            instant.check(keeper.restored)
        runtime.start()
    except BaseException:
        if keeper is not None:
            keeper.close()
        raise
    swarm = Swarm(runtime, layout, parameters, optimizer, every, encoder, turns)
    swarm._instant = instant
    try:
        swarm._enter(join_timeout_s)
    except BaseException as error:
        # Told to stop, and known to the others already: they should not have to take it for dead.
        swarm.leave(timeout_s=0.0 if isinstance(error, Exception) else GOODBYE_S)
        raise
    return swarm


def _may_found(name: str, peers: Sequence[str]) -> bool:
    return not peers or (any(is_named(peer) for peer in peers) and ordinal(name) == 0)


def _turns(layout: Layout) -> Turns | None:
    """A large model is published a part at a time. Not where parameters have fewer bits than the
    weights: what waits for its turn would not be in them; and float64 is not sent in parts."""
    if layout.nbytes <= LARGE_BYTES or layout.narrow or layout.dtype != torch.float32:
        return None
    return Turns(span.spans(layout.size))


def _encoder(choice: Choice, layout: Layout) -> Encoder | None:
    if choice.plain:
        return None
    if layout.narrow:
        raise ConfigError(
            f"codec {choice.name!r}: some parameters have 16 bits, too few to keep what encoding"
            " leaves out; use codec 'fp32': numbers as they are"
        )
    return Encoder(choice, layout.size, layout.dtype)


def _grpc(
    listen: str, advertise: str | None, peers: Sequence[str], insecure: bool, layout: Layout
) -> Transport:
    from murmurate.io.grpc_transport import GrpcTransport

    host = listen.rpartition(":")[0].strip("[]")
    if not insecure and not (host == "localhost" or host.startswith("127.") or host == "::1"):
        raise ConfigError(
            f"listen {listen!r}: beyond this machine what is sent can be read and changed by"
            " anybody on the way; say insecure=True if that is all right"
        )
    return GrpcTransport(listen, advertise=advertise)

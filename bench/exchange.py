"""Averaging one model between two peers: both end with the mean of the two.

murmurate   rule "average" of `join()`: real nodes, gRPC, the core and its checks. Each side gives
            half of its mass to the other; the shares cross, so both end with the mean. Timed from
            `Partners.turn()`, what a step does when it has committed its update, to the mean in
            the model's parameters.
step        the same from `optimizer.step()` on: with the update of the step put in first. No other
            contender has that in its time; it is what a training loop sees.
gloo        all_reduce of torch.distributed, then the division by two
tcp         one socket (cubic), both ways at once, and the mean of what came

Two processes for each turn, all with the allocator a node uses. Before each exchange the models
are set apart, and after it they are compared with the mean they must have. Time: from the first
side's start to the second one's end. CPU: both processes, all threads, kernel included, for every
GB of model (an exchange of 100 MB counts 0.1, whatever goes over the wire).
"""

from __future__ import annotations

import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import crew
import torch
from crew import Shared, Task
from report import Effort, Goal, Report, Scenario, busy_s, disturbed, ratios

if TYPE_CHECKING:
    from murmurate.edge.runtime.node_state import NodeState

SIZES = {"0.24 MB": 240_000, "100 MB": 100_000_000}
TIMES = {"0.24 MB": 40, "100 MB": 4}
"""Exchanges of one turn; their median counts."""
WARM_UP = 1
SETTLE_S = 30.0
OFF_MAX = 1e-5
"""Of the mean; shares that did not cross leave both sides further away."""
CROSSED = 0.5
QUICK_TIMES = 10
QUICK_CROSSED = 0.0
"""A quick run shows that all of it works, on a machine as busy as it may be: there shares often
miss each other, and one pair that crossed is enough."""


def apart(size: int, rank: int, number: int) -> torch.Tensor:
    """What this rank's model is before exchange `number`: different everywhere, and each time."""
    wave = torch.linspace(0.0, 1.0, size)
    return wave.mul_(1.0 + number).add_(2.0 * rank - 1.0)


def mean(size: int, number: int) -> torch.Tensor:
    return apart(size, 0, number).add_(apart(size, 1, number)).div_(2)


def murmurate(shared: Shared, rank: int, *, step: bool = False) -> dict[str, Any]:
    import murmurate
    from murmurate.core.driver import nothing

    parameter = torch.nn.Parameter(torch.zeros(shared.task.extra["bytes"] // 4))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    model = torch.nn.ParameterList([parameter])
    peers = [shared.addresses.get(timeout=crew.LIMIT_S)] if rank else []
    swarm = murmurate.join(
        model, optimizer, run="bench", name=f"node-{rank}", peers=peers, rule="average", seed=0
    )
    if not rank:
        shared.addresses.put(swarm.address)
    assert swarm.follow(lambda: list(swarm.members.values()).count("alive") == 2, SETTLE_S)
    runtime = swarm.runtime
    peer: Any = runtime.look(lambda here: here.peer)
    peer.partners.turn_if_idle = lambda: None  # nobody exchanges anything between the exchanges
    told = False

    def quiet() -> bool:
        """Whether both have taken what was given when they joined."""
        nonlocal told
        if not told and peer.others.settled():
            told = True
            with shared.stop_at.get_lock():
                shared.stop_at.value += 1
        return bool(shared.stop_at.value == 2)

    shared.line_up()
    assert swarm.follow(quiet, SETTLE_S)

    def prepare(values: torch.Tensor) -> None:
        if step:
            parameter.grad = parameter.detach() - values
            return
        delta = values.sub_(runtime.training.weights)

        def commit(here: NodeState) -> None:  # the update of a step; its turn comes in `exchange`
            peer.publish(delta, peer.context())
            here.weights = peer.replica.weights
            peer.links.nobody_due()

        runtime.look(commit)
        swarm.discard()  # the parameters are the weights

    def turn(here: NodeState) -> None:
        peer.partners.turn()
        here.driver.consumed.append(nothing)  # or there would be no reason to flush

    def exchange(number: int) -> None:
        if step:
            optimizer.step()
            swarm.publish()  # where the hook thought it better to wait
        else:
            runtime.look(turn)
            runtime.training.flush(at_once=True)
        assert swarm.follow(lambda: len(swarm.clock) >= 2 * (number + 1), SETTLE_S)

    def settle() -> None:
        assert swarm.settle(SETTLE_S)

    result = _measured(shared, rank, parameter.detach(), prepare, exchange, settle)
    sent = swarm.progress().bytes_sent
    shared.line_up()
    swarm.leave(timeout_s=1.0)
    return {**result, "bytes_sent": sent}


def with_step(shared: Shared, rank: int) -> dict[str, Any]:
    return murmurate(shared, rank, step=True)


def gloo(shared: Shared, rank: int) -> dict[str, Any]:
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = f"file://{shared.task.extra['store']}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    tensor = torch.zeros(shared.task.extra["bytes"] // 4)

    def exchange(_: int) -> None:
        dist.all_reduce(tensor)
        tensor.div_(2)

    return _measured(shared, rank, tensor, tensor.copy_, exchange)


def tcp(shared: Shared, rank: int) -> dict[str, Any]:
    tensor = torch.zeros(shared.task.extra["bytes"] // 4)
    theirs = torch.ones_like(tensor)
    out, into = (t.view(torch.uint8).numpy().data for t in (tensor, theirs))
    with _socket(shared, rank) as sock:

        def exchange(_: int) -> None:
            sending = threading.Thread(target=sock.sendall, args=(out,))
            sending.start()
            filled = 0
            while filled < len(into):
                got = sock.recv_into(into[filled:])
                assert got, "the other side is gone"
                filled += got
            sending.join()
            tensor.add_(theirs).div_(2)

        return _measured(shared, rank, tensor, tensor.copy_, exchange)


@contextmanager
def _socket(shared: Shared, rank: int) -> Iterator[socket.socket]:
    if rank:
        sock = socket.create_connection(shared.addresses.get(timeout=crew.LIMIT_S))
    else:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            shared.addresses.put(listening.getsockname())
            sock, _ = listening.accept()
    with sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        yield sock


def _measured(
    shared: Shared,
    rank: int,
    tensor: torch.Tensor,
    prepare: Callable[[torch.Tensor], Any],
    exchange: Callable[[int], None],
    settle: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Exchanges one by one: begin and end of each, and how far from the mean it ended.

    `settle`: what remains to be done when both have the mean. Not in the time, but in the CPU.
    """
    size, times = tensor.numel(), shared.task.extra["times"]
    began, ended, off = [], [], []
    used_s = cpu_s = busy = start = 0.0
    for number in range(WARM_UP + times):
        if number == WARM_UP:
            used_s, cpu_s, busy, start = 0.0, time.process_time(), busy_s(), time.monotonic()
        prepare(apart(size, rank, number))
        right = mean(size, number)
        shared.line_up()
        before_s = time.process_time()
        began.append(time.monotonic())
        exchange(number)
        ended.append(time.monotonic())
        settle()
        shared.line_up()
        used_s += time.process_time() - before_s
        off.append(float((tensor - right).abs().max() / right.abs().max()))
    return {
        "began": began[WARM_UP:],
        "ended": ended[WARM_UP:],
        "off": off[WARM_UP:],
        "used_s": used_s,
        "cpu_s": time.process_time() - cpu_s,
        "busy_s": busy_s() - busy,
        "seconds": time.monotonic() - start,
    }


ACTS: dict[str, crew.Act] = {
    "murmurate": murmurate,
    "step": with_step,
    "gloo": gloo,
    "tcp": tcp,
}


def repetition(
    contender: str, size: str, times: int | None = None, crossed: float = CROSSED
) -> dict[str, Any]:
    """One turn: seconds of an exchange, CPU seconds per GB of model. Of more than `crossed` of the
    exchanges both shares must have crossed, or the turn says nothing."""
    times = times or TIMES[size]
    nbytes = SIZES[size]
    with tempfile.TemporaryDirectory() as folder:
        extra = {"bytes": nbytes, "times": times, "store": str(Path(folder) / "store")}
        ranks = crew.run(ACTS[contender], Shared(Task(contender=contender, extra=extra)))
    began = zip(*(rank["began"] for rank in ranks), strict=True)
    ended = zip(*(rank["ended"] for rank in ranks), strict=True)
    took = [max(end) - min(begin) for begin, end in zip(began, ended, strict=True)]
    off = [max(both) for both in zip(*(rank["off"] for rank in ranks), strict=True)]
    even = [s for s, far in zip(took, off, strict=True) if far <= OFF_MAX]
    assert len(even) > crossed * times, f"{contender}, {size}: {off} from the mean"
    return {
        "seconds": statistics.median(even),
        "cpu_s_per_gb": sum(rank["used_s"] for rank in ranks) / (times * nbytes / 1e9),
        "foreign": crew.foreign(ranks),
        "uncrossed": times - len(even),
        "took": took,
        "off": off,
        "ranks": ranks,
    }


GOALS = {
    ("100 MB", "gloo"): Goal(value=0.5, floor=0.4),
    ("100 MB", "tcp"): Goal(value=0.45, floor=0.35),
}


def exchange(report: Report, effort: Effort) -> None:
    for size in effort.sizes(SIZES):
        times, crossed = (QUICK_TIMES, QUICK_CROSSED) if effort.quick else (TIMES[size], CROSSED)
        samples = effort.interleaved(
            {
                name: lambda n=name, s=size, t=times, c=crossed: repetition(n, s, t, c)
                for name in ACTS
            }
        )
        report.keep(size, samples)
        tell(report, size, samples, GOALS)
        uncrossed = sum(each["uncrossed"] for each in samples["murmurate"])
        if uncrossed:
            report.remark(f"{size}: the shares of {uncrossed} exchanges did not cross")


def tell(
    report: Report,
    size: str,
    samples: dict[str, list[dict[str, Any]]],
    goals: dict[tuple[str, str], Goal],
) -> None:
    """The figures of one size: times, CPU, and murmurate against each of the others."""
    for name, each in samples.items():
        report.add(f"{size}: {name}", (s["seconds"] * 1e3 for s in each), unit="ms")
    for name, each in samples.items():
        report.add(f"{size}: CPU, {name}", (s["cpu_s_per_gb"] for s in each), unit="s/GB")
    mine = samples["murmurate"]
    for name, theirs in samples.items():
        if name != "murmurate":
            report.add(
                f"{size}: murmurate / {name}",
                ratios([s["seconds"] for s in theirs], [s["seconds"] for s in mine]),
                unit="x",
                goal=goals.get((size, name)),
                disturbed=disturbed(mine, theirs),
            )


SCENARIOS: dict[str, Scenario] = {"exchange": exchange}


if __name__ == "__main__":
    import run

    sys.exit(run.main(SCENARIOS, __doc__))

"""What it costs to be watched: scrapes of two nodes that train LeNet-5 flat out.

Both train on for the whole scenario; turns with `RATE` scrapes a second of each take turns with
turns without any. One scrape a second would be lost in the noise of the machine, so it is worked
out from more. Whoever scrapes takes a part of these two cores itself, which is not the nodes' cost:
so steps are counted per second of the nodes' own processor time; steps per second of the clock are
given too.
"""

from __future__ import annotations

import random
import statistics
import time
import urllib.request
from typing import Any

import crew
import lenet
import torch
from report import Effort, Goal, Report, ratios

RATE = 10.0
"""Scrapes a second of each node, in turns with scrapes."""
USUAL_S = 5.0
"""Between two scrapes in monitoring/prometheus.yml."""
JOIN_S = 60.0
PEERS = 64


class Counts:
    """Of one node, in memory it shares with whoever measures."""

    def __init__(self) -> None:
        self.steps = crew.context.Value("q", 0, lock=False)
        self.cpu_s = crew.context.Value("d", 0.0, lock=False)


def train(rank: int, addresses: Any, counts: Counts, stop: Any) -> None:
    """Until told to stop."""
    import murmurate
    from murmurate.edge.runtime.malloc import keep_memory

    keep_memory()
    torch.set_num_threads(1)
    model = lenet.lenet()
    optimizer = torch.optim.SGD(model.parameters(), lr=lenet.LR)
    peers = [addresses[0].get(timeout=JOIN_S)] if rank else []
    swarm = murmurate.join(
        model,
        optimizer,
        run="bench",
        name=f"node-{rank}",
        peers=peers,
        metrics="127.0.0.1:0",
        rule="sum",
    )
    if not rank:
        addresses[0].put(swarm.address)
    addresses[1].put(swarm.metrics_address)
    step = lenet.stepper(model, optimizer, rank, 64)
    with swarm:
        while not stop.is_set():
            step()
            counts.steps.value += 1
            counts.cpu_s.value = time.process_time()


def scrape(address: str) -> tuple[float, int]:
    """Seconds it took, and how many series there were."""
    began = time.perf_counter()
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        body = answer.read()
    took_s = time.perf_counter() - began
    assert b"murmurate_updates_applied_total" in body
    return took_s, sum(not line.startswith(b"#") for line in body.splitlines())


def scraping(report: Report, effort: Effort) -> None:
    addresses = (crew.context.Queue(), crew.context.Queue())
    stop = crew.context.Event()
    counts = [Counts(), Counts()]
    nodes = [
        crew.context.Process(target=train, args=(rank, addresses, counts[rank], stop))
        for rank in (0, 1)
    ]
    for node in nodes:
        node.start()
    try:
        pages = [addresses[1].get(timeout=JOIN_S) for _ in nodes]
        while not all(each.steps.value > 30 for each in counts):
            assert all(node.is_alive() for node in nodes)
            time.sleep(0.05)
        turns = {
            "watched": lambda: turn(counts, pages, effort.seconds, RATE),
            "alone": lambda: turn(counts, pages, effort.seconds, 0.0),
        }
        samples = effort.interleaved(turns)
    finally:
        stop.set()
        for node in nodes:
            node.join(30)
            if node.is_alive():
                node.kill()
    tell(report, samples)
    at_64_peers(report)


def turn(counts: list[Counts], pages: list[str], seconds: float, rate: float) -> dict[str, Any]:
    before = [(each.steps.value, each.cpu_s.value) for each in counts]
    began = time.monotonic()
    took: list[float] = []
    scrapes = 0
    while (now := time.monotonic()) < began + seconds:
        if not rate:
            time.sleep(began + seconds - now)
            continue
        took += [scrape(page)[0] for page in pages]
        scrapes += 1
        time.sleep(max(0.0, min(began + scrapes / rate, began + seconds) - time.monotonic()))
    wall_s = time.monotonic() - began
    steps = sum(each.steps.value - was for each, (was, _) in zip(counts, before, strict=True))
    cpu_s = sum(each.cpu_s.value - was for each, (_, was) in zip(counts, before, strict=True))
    assert steps > 0
    return {
        "steps_per_s": steps / wall_s,
        "steps_per_cpu_s": steps / cpu_s,
        "scrapes_per_s": scrapes / wall_s,
        "took_ms": [1e3 * each for each in took],
    }


def tell(report: Report, samples: dict[str, list[dict[str, Any]]]) -> None:
    report.keep("turns", samples)
    watched, alone = samples["watched"], samples["alone"]
    took_ms = sorted(each for sample in watched for each in sample["took_ms"])
    middle, late = statistics.median(took_ms), took_ms[int(0.99 * (len(took_ms) - 1))]
    report.add("a scrape, p50", [middle], unit="ms")
    report.add("a scrape, p99", [late], unit="ms", goal=Goal(value=50.0, at_most=True))
    rate = statistics.median(sample["scrapes_per_s"] for sample in watched)
    for key, what in (("steps_per_cpu_s", "of CPU"), ("steps_per_s", "by the clock")):
        parts = ratios((each[key] for each in watched), (each[key] for each in alone))
        each_s = [100 * (1 - part) / rate for part in parts]
        goal = Goal(value=1.0, at_most=True) if key == "steps_per_cpu_s" else None
        report.add(f"steps lost at 1 scrape/s, {what}", each_s, unit="%", goal=goal)
        usual = [value / USUAL_S for value in each_s]
        report.add(f"… at one in {USUAL_S:g} s, {what}", usual, unit="%")
    report.remark(f"scraped {rate:.1f} times a second, and divided by it")


def at_64_peers(report: Report) -> None:
    """What one scrape takes of the processor, by itself, with as many series as there may be."""
    from murmurate.core.figures.counters import NAMES_MAX, Tally
    from murmurate.core.figures.sources import NodeInstant
    from murmurate.core.figures.staleness_forecast import Outlook
    from murmurate.core.figures.table import NODE, values
    from murmurate.core.staleness import Summary
    from murmurate.watch.metrics import exposition

    names = {f"node-{number}": 7 for number in range(NAMES_MAX)} | {"other": 7}
    tally = Tally()
    tally.staleness = Summary(value for value in range(PEERS * 4) for _ in range(9))
    tally.applied_of = tally.staleness_of = tally.sent_to = names
    tally.accuracy_of = (0.5,) * 32
    tally.step(0.003)
    node = NodeInstant(
        name="node-0",
        run="bench",
        rule="sum",
        topology="full",
        now=0.0,
        tally=tally,
        outlook=Outlook(random.Random(0)),
    )
    silence = dict.fromkeys(names, 0.1)
    expose = exposition(lambda: {**values(NODE, node), "peer_silence_seconds": silence}, NODE)
    times = []
    for _ in range(50):
        began = time.process_time()
        body, _ = expose("text/plain")
        times.append(1e3 * (time.process_time() - began))
    series = sum(not line.startswith(b"#") for line in body.splitlines())
    report.keep("64 peers", {"cpu_ms": times, "series": series})
    report.add(f"text of {series} series ({PEERS} peers), CPU", times, unit="ms")


SCENARIOS = {"scrape": scraping}

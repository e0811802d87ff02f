"""Many seeds on all cores: progress, a summary, and one line that replays a failure."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace

from murmurate.study.sim.mutants import applied
from murmurate.study.sim.options import Options
from murmurate.study.sim.world import Result, simulate

CHUNK = 8


@dataclass(slots=True)
class SeedsSummary:
    """What many seeds came to."""

    seeds: int = 0
    events: int = 0
    applied: int = 0
    staleness_checks: int = 0
    virtual_s: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    settle_s_max: float = 0.0
    nodes_max: int = 0
    topologies: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Result] = field(default_factory=list)
    traces: dict[int, str] = field(default_factory=dict)

    def add(self, result: Result, cpu_s: float) -> None:
        self.seeds += 1
        self.traces[result.seed] = result.trace_hash
        self.cpu_s += cpu_s
        self.events += result.events
        self.applied += result.applied
        self.staleness_checks += result.staleness_checks
        self.virtual_s += result.virtual_s
        self.settle_s_max = max(self.settle_s_max, result.settle_s)
        self.nodes_max = max(self.nodes_max, result.nodes)
        self.topologies[result.topology] += 1
        self.counts += result.counts
        if result.failure:
            self.failures.append(result)

    @property
    def trace_hash(self) -> str:
        """Of all events of all seeds, in the order of the seeds: the same, if nothing changed."""
        traces = "".join(trace for _, trace in sorted(self.traces.items()))
        return hashlib.sha256(traces.encode()).hexdigest()

    @property
    def speed(self) -> float:
        """Virtual seconds per second of one core."""
        return self.virtual_s / self.cpu_s if self.cpu_s else 0.0


def _run_chunk(
    seeds: tuple[int, ...], options: Options, mutant: str | None
) -> list[tuple[Result, float]]:
    import torch

    torch.set_num_threads(1)
    out = []
    with applied(mutant):
        for seed in seeds:
            start = time.process_time()
            result = simulate(seed, options)
            out.append((result, time.process_time() - start))
            if result.failure and mutant:
                break
    return out


def run_seeds(
    seeds: Iterable[int],
    options: Options,
    *,
    mutant: str | None = None,
    jobs: int | None = None,
    progress: Callable[[SeedsSummary], None] | None = None,
    failures_max: int = 3,
) -> SeedsSummary:
    """Simulate seeds in parallel until all are done, or `failures_max` have failed."""
    started = time.monotonic()
    jobs = jobs or os.cpu_count() or 1
    summary = SeedsSummary()
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("forkserver")) as pool:
        chunks = _chunks(seeds)
        running: set[Future[list[tuple[Result, float]]]] = set()
        while True:
            while len(running) < 2 * jobs and (chunk := next(chunks, None)):
                running.add(pool.submit(_run_chunk, chunk, options, mutant))
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                for result, cpu_s in future.result():
                    summary.add(result, cpu_s)
            summary.wall_s = time.monotonic() - started
            if progress is not None:
                progress(summary)
            if len(summary.failures) >= failures_max:
                for future in running:
                    future.cancel()
                break
    summary.failures.sort(key=lambda result: result.seed)
    return summary


def _chunks(seeds: Iterable[int]) -> Iterator[tuple[int, ...]]:
    chunk: list[int] = []
    for seed in seeds:
        chunk.append(seed)
        if len(chunk) == CHUNK:
            yield tuple(chunk)
            chunk = []
    if chunk:
        yield tuple(chunk)


def kill(mutant: str, seeds_max: int, options: Options, *, jobs: int | None = None) -> SeedsSummary:
    """Run seeds with a deliberate mistake until one fails: `failures` is empty if none does."""
    return run_seeds(range(seeds_max), replace(options), mutant=mutant, jobs=jobs, failures_max=1)

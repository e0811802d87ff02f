"""Virtual time against real processes: four nodes of `murmurate up`, on the cores of this machine.

crowded  as fast as they can: what a step, a fold and a message cost decides, and that four nodes
         share the cores
padded   each waits 50 ± 10 ms after a step, so cores do not matter (were the waits all alike, the
         nodes would stay in the order in which they began, and staleness would be of that order)

Both are the same command, with `--virtual` and without. In virtual time costs are measured, each
turn anew, the cores are this machine's, and nothing is told of what the real nodes did. Compared
are samples a second of all nodes and mean staleness; to reach: within 15 % of each other.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report import Effort, Goal, Report, Scenario, busy_s, disturbed, ratios

NODES = 4
LIMIT_S = 600.0
APART = 1.15
FORMS = {"crowded": [], "padded": ["--slow=gaussian(0.05,0.01)"]}
REAL, VIRTUAL = "real", "virtual"
COSTS = ("step", "fold", "message")


def turn(kind: str, more: list[str], workload: str, seconds: float) -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        words = ["up", f"--nodes={NODES}", f"--workload={workload}", f"--seconds={seconds}", *more]
        words += ["--rule=sum", "--every=1", "--codec=fp32", "--lr=0.001", "--evaluate-s=0"]
        if kind == VIRTUAL:
            words += ["--virtual", f"--cores={cores}", *(f"--{cost}-s=measured" for cost in COSTS)]
        busy, mine = busy_s(), _children_s()
        command = [sys.executable, "-m", "murmurate", *words, f"--report={file}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if done.returncode:
            raise RuntimeError(f"murmurate {' '.join(words)}:\n{done.stderr}")
        others_s = busy_s() - busy - (_children_s() - mine)
        found = json.loads(file.read_text())
    rows = [row for row in found["nodes"] if row["role"] == "peer"]
    assert len(rows) == NODES
    assert all(row["updates_published"] for row in rows)
    return {
        "samples_per_s": sum(row["samples_per_s"] for row in rows),
        "staleness": found["staleness"]["mean"],
        "updates": sum(row["updates_published"] for row in rows),
        "bytes_per_s": sum(row["bytes_sent"] for row in rows) / found["wall_s"],
        "wall_s": found["wall_s"],
        "costs": found.get("costs"),
        "cores": found.get("cores"),
        "foreign": max(0.0, others_s) / (cores * max(1.0, seconds)),
    }


def _children_s() -> float:
    """Processor time of all processes that this one has started and seen end."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def virtual(report: Report, effort: Effort) -> None:
    seconds = 2.0 if effort.quick else 5 * effort.seconds
    workload = "digits" if effort.quick else "fashion-mnist"

    def turns(more: list[str]) -> dict[str, Callable[[], Any]]:
        return {kind: lambda k=kind: turn(k, more, workload, seconds) for kind in (REAL, VIRTUAL)}

    for form in FORMS if effort.size is None else effort.sizes(FORMS):
        samples = effort.few(3).interleaved(turns(FORMS[form]))
        report.keep(form, samples)
        for what, unit in (("samples_per_s", "1/s"), ("staleness", "")):
            by = {kind: [each[what] for each in samples[kind]] for kind in samples}
            for kind, values in by.items():
                report.add(f"{form}: {what.replace('_per_s', '')}, {kind}", values, unit=unit)
            report.add(
                f"{form}: {what.replace('_per_s', '')}, virtual / real",
                ratios(by[VIRTUAL], by[REAL]),
                unit="x",
            )
            report.add(
                f"{form}: the same, how far apart",
                [max(each, 1 / each) for each in ratios(by[VIRTUAL], by[REAL])],
                unit="x",
                goal=Goal(value=APART, at_most=True),
                disturbed=disturbed(samples[REAL], samples[VIRTUAL]),
            )
        costs = samples[VIRTUAL][-1]["costs"]
        report.remark(f"{form}: " + ", ".join(f"{k} {1e3 * v:.3g} ms" for k, v in costs.items()))


SCENARIOS: dict[str, Scenario] = {"virtual": virtual}


if __name__ == "__main__":
    import run

    sys.exit(run.main(SCENARIOS, __doc__))

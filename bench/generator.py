"""What it costs to pull batches from a generator instead of reading data of one's own.

Two real nodes (`murmurate up`) train digits, or LeNet-5 on FashionMNIST, with `--generator` and
without, in turns. With it one more process makes and deals every batch, on the same cores. Compared
are samples a second of both nodes together, from their own reports; that no batch was consumed
twice is checked.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from report import Effort, Report, Scenario, ratios

NODES = 2
RUN_S = 120.0
WORKLOADS = {"digits": "digits", "LeNet-5": "fashion-mnist"}


def turn(workload: str, seconds: float, *, generator: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        words = ["up", f"--nodes={NODES}", f"--workload={workload}", f"--seconds={seconds}"]
        words += [f"--report={file}"] + (["--generator"] if generator else [])
        command = [sys.executable, "-m", "murmurate", *words]
        subprocess.run(command, check=True, capture_output=True, timeout=RUN_S)
        found = json.loads(file.read_text())
    peers = [row for row in found["nodes"] if row["role"] == "peer"]
    assert len(peers) == NODES
    assert all(row["samples"] for row in peers)
    for row in found["nodes"]:
        if row["role"] == "generator":
            totals = row["totals"]
            assert 0 < totals["consumed"] <= totals["batches"], totals
            assert not totals["repeated"], totals
    return {
        "samples_per_s": sum(row["samples_per_s"] for row in peers),
        "updates": sum(row["updates_published"] for row in peers),
        "wait_s": [row["wait_s"] for row in peers],
    }


def generator(report: Report, effort: Effort) -> None:
    seconds = 2.0 if effort.quick else 2 * effort.seconds
    for size in effort.sizes(WORKLOADS):
        workload = WORKLOADS[size]
        samples = effort.interleaved(
            {
                "own data": lambda w=workload: turn(w, seconds, generator=False),
                "generator": lambda w=workload: turn(w, seconds, generator=True),
            }
        )
        report.keep(size, samples)
        for name, each in samples.items():
            report.add(f"{size}: {name}", (s["samples_per_s"] for s in each), unit="1/s")
        report.add(
            f"{size}: generator / own data",
            ratios(
                [s["samples_per_s"] for s in samples["generator"]],
                [s["samples_per_s"] for s in samples["own data"]],
            ),
            unit="x",
        )


SCENARIOS: dict[str, Scenario] = {"generator": generator}


if __name__ == "__main__":
    import run

    sys.exit(run.main(SCENARIOS, __doc__))

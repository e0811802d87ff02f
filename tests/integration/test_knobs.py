"""Real processes with all of it: optimizer, schedule, warm-ups, slowness, a rule for studies."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LIMIT_S = 180.0


def test_all_of_it_reaches_real_nodes(tmp_path: Path) -> None:
    report = tmp_path / "out.json"
    words = (
        "up --nodes 2 --samples 16000 --rule bound --strength 3 --optimizer sgd-adam --lr 0.005"
        " --momentum 0.5 --nesterov --weight-decay 0.0001 --warmup 0.2 --schedule poly(0.5)"
        " --batch-warmup 0.2 --slow node-0=x1.5 --slow node-1=gaussian(0.01,0.002)"
    )
    command = [sys.executable, "-m", "murmurate", *words.split(), "--report", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "replicas with the same updates are no longer equal" in done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert found["samples"] >= 16_000
    assert found["accuracy_min"] > 0.5
    assert found["cc_ratio"] > 1.0
    for node in found["nodes"]:
        assert node["state"] == "done"
        assert node["staleness"]["max"] <= 3  # what is staler was refused

"""`import murmurate` and the command line start without torch, which costs 2 to 3 s."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "murmurate",
        "murmurate.programs.cli.main",
        "murmurate.programs.up.up",
        "murmurate.watch.status",
        "murmurate.watch.top",
        "murmurate.edge.net.grpc_terms",
        "murmurate_coordinator.cli",
    ],
)
def test_import_leaves_torch_out(module: str) -> None:
    code = f"import {module}, sys; assert 'torch' not in sys.modules, 'torch was imported'"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=60)
    assert done.returncode == 0, done.stderr

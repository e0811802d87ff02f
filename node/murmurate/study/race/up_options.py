"""The options of `murmurate up`, as a race file has them: what a solver and a setting are made of.

A race knows no mode, rule or setting by name: whatever `up` takes may stand in the file, and what
`up` learns later does too.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from murmurate.errors import ConfigError
from murmurate.programs.cli import up

DECIDED = (
    "report", "seed", "virtual", "help", "run", "checkpoint", "checkpoint-every-s", "metrics",
    "trajectory",
)  # fmt: skip
"""Options that a race decides itself, or that a cell of it has no use for."""
NOT_HERE = "an option of up, but a race decides it by itself (seeds, time) or has no use for it"
AT = ("join", "leave", "kill")
"""Options of the form NAME@VALUE; the others that name nodes have NAME=VALUE."""


def _parser() -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    whole = argparse.ArgumentParser(prog="murmurate", add_help=False)
    commands = whole.add_subparsers()
    up.add(commands)
    return whole, commands.choices["up"]


def option_names() -> list[str]:
    """What may stand in a table of a race file."""
    _, parser = _parser()
    names = [text[2:] for action in parser._actions for text in action.option_strings]
    return sorted(name for name in names if name not in DECIDED and name.strip("-"))


def spelled(key: str) -> str:
    return key.replace("_", "-")


def arguments_of(options: Mapping[str, Any]) -> list[str]:
    """The command line that these options make. `speed = {node-0 = 0.25}` is an option that names
    nodes, a list one that is given several times, true one without a value."""
    made = []
    for key, value in options.items():
        option = f"--{spelled(key)}"
        if value is True:
            made.append(option)
        elif value is False:
            continue
        elif isinstance(value, Mapping):
            sign = "@" if spelled(key) in AT else "="
            made += [f"{option}={name}{sign}{each}" for name, each in value.items()]
        elif isinstance(value, list):
            made += [f"{option}={each}" for each in value]
        else:
            made.append(f"{option}={value}")
    return made


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """ConfigError: not what `up` takes."""
    whole, _ = _parser()
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return whole.parse_args(["up", *arguments])
    except SystemExit:
        text = said.getvalue().strip().splitlines()[-1:] or ["not understood"]
        raise ConfigError(text[0].rpartition("error: ")[2].replace("argument ", "")) from None


def check(arguments: Sequence[str]) -> None:
    """ConfigError: `up` would refuse it. Nothing is trained."""
    from murmurate import workloads
    from murmurate.study.commands import virtual_plan
    from murmurate.study.virtual.command import engine

    options = parsed(arguments)
    if options.virtual:
        plan = virtual_plan(options)
        engine(plan.config.train.mode)
        train = plan.config.train
    else:
        train = up.plan_of(options).config.train
    workloads.check(train.workload, train.data)


def run(arguments: Sequence[str]) -> dict[str, Any]:
    """One training by `murmurate up`; its report. ConfigError: `up` refused it."""
    with tempfile.TemporaryDirectory(prefix="murmurate-race-") as folder:
        file = Path(folder) / "report.json"
        command = [*arguments, f"--report={file}"]
        if "--virtual" in arguments:
            options = parsed(command)
            with contextlib.redirect_stdout(io.StringIO()):
                code = options.run(options)
            said = ""
        else:  # it starts processes and handles signals: that is a program of its own
            made = subprocess.run(
                [sys.executable, "-m", "murmurate", "up", *command],
                capture_output=True,
                text=True,
                check=False,
            )
            code, said = made.returncode, made.stderr.strip().replace("murmurate: ", "")
        if code == 130:
            raise KeyboardInterrupt
        if code or not file.is_file():
            raise ConfigError(said or f"murmurate up ended with {code}")
        report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return report

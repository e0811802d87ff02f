"""A training of a study: `murmurate up --virtual`, if this installation has the mode and rule."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

from murmurate.errors import ConfigError
from murmurate.study.race import up_options


class NotHere(Exception):
    """There is no such training here: a mode, rule, setting or data set is missing. Says which."""


def trained(*arguments: str) -> dict[str, Any]:
    """The report. NotHere: `up` would refuse it."""
    command = ["--virtual", *arguments]
    try:
        up_options.check(command)
        return up_options.run(command)
    except ConfigError as error:
        raise NotHere(str(error).splitlines()[0]) from None


def kept(file: Path, *arguments: str) -> dict[str, Any]:
    """The same with its trajectory, beside the report in this file. NotHere: as above."""
    command = ["--virtual", *arguments, f"--report={file}", "--trajectory"]
    try:
        up_options.check(command)
        options = up_options.parsed(command)
        with contextlib.redirect_stdout(io.StringIO()):
            options.run(options)
    except ConfigError as error:
        raise NotHere(str(error).splitlines()[0]) from None
    report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return report

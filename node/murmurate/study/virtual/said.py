"""What may be said of single nodes on the command line: speeds, delays, links, and when they come
and go. ConfigError, in one line, for whatever cannot be."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from murmurate.errors import ConfigError
from murmurate.programs.up.launch import known

SECONDS_MAX = 1e9
BYTES_MAX = 1e15
"""In a second: wider than any link."""

NUMBER = r"(\d+\.?\d*|\.\d+)(e[+-]?\d+)?"
ACCEPTED = {
    "--speed": ("steps in a second, above 0 and below 1e9", "node-0=0.25"),
    "--delay-s": ("seconds from 0 on, below 1e9", "node-0=0.25"),
    "--link-bytes-s": ("bytes in a second, above 0 and below 1e15", "node-0=125000"),
}


def number(option: str, text: str, names: Sequence[str]) -> tuple[str, float]:
    """`node-0=0.25`, or a number for all of them."""
    match = re.fullmatch(rf"(?:(.+)=)?{NUMBER}", text)
    value = float(match[2] + (match[3] or "")) if match else -1.0
    enough = value > 0 or (value == 0 and option == "--delay-s")
    most = BYTES_MAX if option == "--link-bytes-s" else SECONDS_MAX
    if match is None or not enough or value >= most:
        accepted, example = ACCEPTED[option]
        raise ConfigError(f"{option} {text!r}: [NAME=]NUMBER, {accepted}, such as {example}")
    return (known(option, match[1], names) if match[1] else ""), value


def moment(option: str, text: str, names: Sequence[str]) -> tuple[str, float]:
    """`node-3@100`: a virtual second."""
    match = re.fullmatch(rf"(.+)@{NUMBER}", text)
    value = float(match[2] + (match[3] or "")) if match else 0.0
    if match is None or not 0 < value < SECONDS_MAX:
        raise ConfigError(
            f"{option} {text!r}: NAME@SECONDS, virtual ones above 0, such as node-3@100"
        )
    return known(option, match[1], names), value


def moments_that_cannot_be(
    joins: Mapping[str, float], leaves: Mapping[str, float], names: Sequence[str]
) -> list[str]:
    """Of those who come and go: what is said about them, if anything is wrong."""
    problems = [
        f"--leave {name}@{leaves[name]:g}: it joins at {joins[name]:g} s only"
        for name in joins.keys() & leaves.keys()
        if leaves[name] <= joins[name]
    ]
    if len(joins) == len(names):
        problems.append("--join: somebody must be there from the beginning")
    if len(leaves) == len(names):
        problems.append("--leave: somebody must stay to the end")
    return sorted(problems)

"""What `murmurate up` is told beside the keys of its nodes: one line for each option.

Help, what is for real or for virtual time only, what a race file may hold, and what the plans are
given follow from it; a plan has an argument of that name.
"""

from __future__ import annotations

import argparse
from enum import Flag, auto
from typing import Any, NamedTuple


class Time(Flag):
    """In which time an option means something."""

    REAL = auto()
    VIRTUAL = auto()


BOTH = Time.REAL | Time.VIRTUAL


class UpOption(NamedTuple):
    """One of them. Without a metavar it is yes or no; `again`: it may be given for more nodes."""

    name: str
    option: str
    metavar: str
    help: str
    time: Time = BOTH
    again: bool = True
    why_not: str = ""
    """Why not in virtual time, where it is for real time only."""


FOR_MORE = "; again for more nodes"
UP_OPTIONS = (
    UpOption(
        "kill",
        "--kill",
        "NAME@PART%",
        f"kill -9 a node when the swarm has that part of its budget{FOR_MORE}",
    ),
    UpOption(
        "slow",
        "--slow",
        "[NAME=]S",
        "let all nodes, or one, wait after each step: seconds, gaussian(MEAN,DEVIATION),"
        f" exponential(SHIFT,MEAN) or xFACTOR{FOR_MORE}",
    ),
    UpOption(
        "codec",
        "--codec",
        "[NAME=]CODEC",
        "how updates are sent: auto, fp32, bf16, int8 or topk; of all nodes, or of one; again for"
        " more",
    ),
    UpOption(
        "widths",
        "--widths",
        "W,W,…",
        "mode ist: how large each node's subnet is, relative to the others' (default: as it is"
        " fast)",
        again=False,
    ),
    UpOption(
        "generator",
        "--generator",
        "",
        "one more process deals the batches, each to one node (docs/generator.md)",
    ),
    UpOption(
        "trajectory",
        "--trajectory",
        "",
        "keep weights now and then beside the report: murmurate plot then draws the loss landscape",
    ),
    UpOption(
        "speed",
        "--speed",
        "[NAME=]STEPS",
        "with --virtual: how fast a node is (default 1: a step a second, if --step-s does not say"
        " otherwise); again for more",
        Time.VIRTUAL,
    ),
    UpOption(
        "step",
        "--step-s",
        "A[+B]",
        "with --virtual: seconds of a step at speed 1, and for each sample of its batch more;"
        " measured: as on this machine (default 1)",
        Time.VIRTUAL,
        again=False,
    ),
    UpOption(
        "fold",
        "--fold-s",
        "S",
        "with --virtual: seconds at speed 1 for each update that is folded in, or measured"
        " (default 0)",
        Time.VIRTUAL,
        again=False,
    ),
    UpOption(
        "message",
        "--message-s",
        "S",
        "with --virtual, mode gossip: seconds at speed 1 that a message with updates takes the"
        " other threads of both its ends, or measured (default 0)",
        Time.VIRTUAL,
        again=False,
    ),
    UpOption(
        "cores",
        "--cores",
        "N",
        "with --virtual, mode gossip: all nodes share so many (default: each has its own)",
        Time.VIRTUAL,
        again=False,
    ),
    UpOption(
        "delay",
        "--delay-s",
        "[NAME=]S",
        "with --virtual: seconds a message takes (default 0), of all links or of one node's",
        Time.VIRTUAL,
    ),
    UpOption(
        "link",
        "--link-bytes-s",
        "[NAME=]N",
        "with --virtual: bytes a second that links take, of all nodes or of one (default: all"
        " there are)",
        Time.VIRTUAL,
    ),
    UpOption(
        "join",
        "--join",
        "NAME@SECONDS",
        f"with --virtual: when a node comes, in virtual seconds{FOR_MORE}",
        Time.VIRTUAL,
    ),
    UpOption(
        "leave",
        "--leave",
        "NAME@SECONDS",
        f"with --virtual: when a node goes, in virtual seconds{FOR_MORE}",
        Time.VIRTUAL,
    ),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """All of them."""
    for name, option, metavar, text, _, again, _ in UP_OPTIONS:
        how: dict[str, Any] = {"metavar": metavar} if metavar else {"action": "store_true"}
        if metavar and again:
            how |= {"action": "append", "default": []}
        parser.add_argument(option, dest=name, help=text, **how)


def said(arguments: argparse.Namespace, time: Time) -> dict[str, Any]:
    """What there is to say of them in this time, as the plan's arguments."""
    return {each.name: getattr(arguments, each.name) for each in UP_OPTIONS if each.time & time}


def misplaced(arguments: argparse.Namespace, time: Time) -> list[UpOption]:
    """Those that were given and mean nothing in this time."""
    others = (each for each in UP_OPTIONS if not each.time & time)
    return [each for each in others if getattr(arguments, each.name)]

"""Settings of others: tried on `equal`, each for half a race; the best is what they race with.

For hivemind its documented options: how many samples lie between two averagings, how long a group
is looked for, whether training waits for the average, and whether momenta are averaged, too. For
Flower the local steps of a round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from race.contenders import CONTENDERS
from race.judge import at_end

SCENARIO = "tune"
Options = dict[str, Any]

CANDIDATES: dict[str, list[Options]] = {
    "hivemind": [
        {"target_batch_size": 1280, "matchmaking_time": 0.5},
        {"target_batch_size": 640, "matchmaking_time": 0.3},
        {"target_batch_size": 2560, "matchmaking_time": 1.0},
        {"target_batch_size": 5120, "matchmaking_time": 2.0},
        {"target_batch_size": 1280, "matchmaking_time": 0.5, "delay_state_averaging": False},
        {
            "target_batch_size": 1280,
            "matchmaking_time": 0.5,
            "average_opt_statistics": ["momentum_buffer"],
        },
    ],
    "flower": [{"steps": 20}, {"steps": 5}, {"steps": 10}, {"steps": 40}, {"steps": 80}],
}
MOMENTA = {"text": ["exp_avg", "exp_avg_sq"]}
"""What Adam calls them."""


def candidates(contender: str, workload: str) -> list[Options]:
    """The first is what is used where nothing was tried."""
    out = []
    for options in CANDIDATES.get(contender, []):
        options = dict(options)
        if "average_opt_statistics" in options and workload in MOMENTA:
            options["average_opt_statistics"] = MOMENTA[workload]
        out.append(options)
    return out


def key(workload: str, contender: str, seconds: float, number: int) -> str:
    return f"{workload}/{SCENARIO}/{contender}/{seconds / 2:g} s/{number}"


def tried(
    lines: Mapping[str, Any], workload: str, contender: str, seconds: float
) -> list[tuple[float, Options]]:
    """Accuracy at the end and options of those that were tried, the best first."""
    found = []
    for number, options in enumerate(candidates(contender, workload)):
        line = lines.get(key(workload, contender, seconds, number))
        if line is not None and line["options"] == options:
            worth = at_end(line["curve"]) if "curve" in line else 0.0
            found.append((worth, options))
    return sorted(found, key=lambda each: -each[0])


def chosen(lines: Mapping[str, Any], workload: str, contender: str, seconds: float) -> Options:
    best = tried(lines, workload, contender, seconds)
    if best:
        return best[0][1]
    return next(iter(candidates(contender, workload)), {})


def told(lines: Mapping[str, Any], workload: str, contender: str, seconds: float) -> str:
    """Its settings in words, and what else was tried."""
    options = chosen(lines, workload, contender, seconds)
    text = CONTENDERS[contender].settings
    if options:
        text += "; " + _words(options)
    rest = tried(lines, workload, contender, seconds)
    if rest:
        text += "; tried: " + "; ".join(f"{_words(o)}: {worth:.1%}" for worth, o in rest)
    elif options:
        text += "; not tuned here (--tune)"
    return text


def _words(options: Options) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())

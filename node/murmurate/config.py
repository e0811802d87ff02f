"""What a node is told: one typed value from a TOML file, the environment and the command line.

An option beats the environment, the environment beats the file, the file beats the default. Nothing
is guessed: a key that is not known, or a value that cannot be run, is named with its place and with
what is accepted, and all of them are named at once. No torch here: a mistake is told in a blink.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from murmurate.core.topology import TOPOLOGIES
from murmurate.errors import ConfigError
from murmurate.io.codec_choice import parse_codec
from murmurate.values import (
    ADDRESS,
    DNS,
    FILE,
    FLAG,
    FOLDER,
    LIST,
    NUMBER,
    SIZE,
    STDIN,
    TEXT,
    WHOLE,
    Kind,
    Shard,
    Wrong,
    cannot_listen,
    is_address,
    is_advertise,
    is_codec,
    is_existing,
    is_flag,
    is_folder,
    is_generator,
    is_name,
    is_peers,
    is_shard,
    is_size,
    is_split,
    is_workload,
    is_writable,
    loopback,
    nearest,
    number,
    one_of,
    same_place,
    split_address,
    whole,
    wildcard,
)

MODES = ("gossip", "ist")
RULES = ("sum", "average")
IST_RULES = ("sync", "once", "async", "lease", "fedavg")
ROLES = ("peer", "generator")
PREFIX = "MURMURATE_"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Who this node is, and whom it knows."""

    name: str | None = None
    role: str = "peer"
    run: str = "murmurate"
    listen: str = "127.0.0.1:0"
    advertise: str | None = None
    peers: tuple[str, ...] = ()
    insecure: bool = False
    seed: int = 0
    threads: int = 0
    found: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """What is trained, how, and for how long. None: the workload decides (or: no limit)."""

    workload: str = "digits"
    data: str | None = None
    split: str = "none"
    shard: Shard = field(default_factory=Shard)
    batch_size: int | None = None
    lr: float | None = None
    every: int = 1
    rule: str = "sum"
    mode: str = "gossip"
    topology: str = "full"
    codec: str = "fp32"
    slow_s: float = 0.0
    generator: str | None = None
    samples: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IstConfig:
    """A member of independent subnet training: for whom, and how much it can do."""

    coordinator: str | None = None
    width: float = 0.0
    memory: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """Where this node keeps what it is, and how often."""

    dir: str | None = None
    every_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """Where this node's figures are served; None: nowhere."""

    listen: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportConfig:
    """What is written at the end."""

    path: str | None = None
    audit: str | None = None
    weights: str | None = None
    trajectory: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All of it."""

    node: NodeConfig = field(default_factory=NodeConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    ist: IstConfig = field(default_factory=IstConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    report: ReportConfig = field(default_factory=ReportConfig)


# -- the keys ------------------------------------------------------------------------------------


class Key(NamedTuple):
    """One key: where it stands, what it takes, what it means."""

    section: str
    name: str
    kind: Kind
    check: Callable[[object], object]
    meaning: str

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def option(self) -> str:
        if self.section == "report":
            return "--report" if self.name == "path" else f"--{self.name}"
        if self.section == "checkpoint":
            return "--checkpoint" if self.name == "dir" else "--checkpoint-every-s"
        if self.section == "metrics":
            return "--metrics"
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return f"{PREFIX}{self.section}_{self.name}".upper()


RULE_HELP = f"what an update does: {' or '.join(RULES)}; up --mode ist: {', '.join(IST_RULES)}"
WIDTH_HELP = "how large a subnet, relative to the others' (default: as it is fast)"
MEMORY_HELP = "for subnet, gradients and optimizer, such as 200MB (default: enough)"

KEYS = (
    Key("node", "name", TEXT, is_name, "name in the swarm (default: chosen at the start)"),
    Key("node", "role", TEXT, one_of(ROLES), "peer, or generator: deals batches, has no model"),
    Key("node", "run", TEXT, is_name, "name of the training; peers of another run are refused"),
    Key("node", "listen", ADDRESS, is_address, "where to listen; port 0 takes a free one"),
    Key("node", "advertise", ADDRESS, is_advertise, "where others reach it (default: listen)"),
    Key(
        "node",
        "peers",
        LIST,
        is_peers,
        "some members, or dns:NAME:PORT; none: found a run",
    ),
    Key("node", "insecure", FLAG, is_flag, "listen beyond this machine, without encryption"),
    Key("node", "seed", WHOLE, whole(0), "of first weights and data order"),
    Key("node", "threads", WHOLE, whole(0), "for torch; 0: all cores"),
    Key("node", "found", FLAG, is_flag, "with peers: found it if none of them is in a swarm"),
    Key("train", "workload", TEXT, is_workload, "name, or FILE.py:CLASS"),
    Key("train", "data", FILE, is_existing, "file or folder with the data, where one is needed"),
    Key("train", "split", TEXT, is_split, "none, dataset, labels or dirichlet(α): who sees what"),
    Key("train", "shard", TEXT, is_shard, "part i of n of the data, as i/n or ordinal/n"),
    Key("train", "batch_size", WHOLE, whole(1), "samples in a step (default: the workload's)"),
    Key("train", "lr", NUMBER, number(0, above=True), "learning rate (default: the workload's)"),
    Key("train", "every", WHOLE, whole(1), "local steps in an update"),
    Key("train", "rule", TEXT, one_of((*RULES, *IST_RULES)), RULE_HELP),
    Key("train", "mode", TEXT, one_of(MODES), "gossip, or ist: a subnet, from a coordinator"),
    Key("train", "topology", TEXT, one_of(TOPOLOGIES), f"who sends to whom: {TOPOLOGIES[0]}, …"),
    Key("train", "codec", TEXT, is_codec, "how updates are sent: fp32, bf16, int8 or topk"),
    Key("train", "slow_s", NUMBER, number(0), "sleep after each step: a slower machine, in s"),
    Key("train", "generator", ADDRESS, is_generator, "take batches from there, not from own data"),
    Key("train", "samples", WHOLE, whole(1), "end when the whole swarm has seen so many"),
    Key("train", "seconds", NUMBER, number(0, above=True), "end after so long"),
    Key("ist", "coordinator", ADDRESS, is_generator, "mode ist: where the coordinator is"),
    Key("ist", "width", NUMBER, number(0, above=True), WIDTH_HELP),
    Key("ist", "memory", SIZE, is_size, MEMORY_HELP),
    Key("checkpoint", "dir", FOLDER, is_folder, "a folder of its own; goes on from what is there"),
    Key("checkpoint", "every_s", NUMBER, number(0, above=True), "seconds between two (default 30)"),
    Key("metrics", "listen", ADDRESS, is_address, "serve /metrics, probes and a page there"),
    Key("report", "path", FILE, is_writable, "JSON file for the report"),
    Key("report", "audit", FILE, is_writable, "file for a line per update: the batches in it"),
    Key("report", "weights", FILE, is_writable, ".npy file for the final weights, flat"),
    Key("report", "trajectory", FILE, is_writable, ".safetensors file for weights now and then"),
)


class Book:
    """All keys of one program: of a node, or of another that is configured in the same way."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self.keys = tuple(keys)
        self.by_path = {key.path: key for key in self.keys}
        self.sections = tuple(dict.fromkeys(key.section for key in self.keys))


NODE = Book(KEYS)

# Kubernetes puts the addresses of a service «murmurate-node» into variables that look like keys.
_KUBERNETES = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?$")


# -- putting it together -------------------------------------------------------------------------


class Given(NamedTuple):
    """A value as it was found, and where."""

    place: str
    value: object


def load(
    file: str | None = None,
    environment: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> Config:
    """The configuration; ConfigError with one line for each thing that is wrong.

    `options` are texts by path, such as {"train.lr": "0.1"}.
    """
    found = gather(NODE, file, environment or {}, options or {}, _together)
    if "shard" in found["train"]:
        found["train"]["shard"] = found["train"]["shard"].of(found["node"].get("name", ""))
    return Config(
        node=NodeConfig(**found["node"]),
        train=TrainConfig(**found["train"]),
        ist=IstConfig(**found["ist"]),
        checkpoint=CheckpointConfig(**found["checkpoint"]),
        metrics=MetricsConfig(**found["metrics"]),
        report=ReportConfig(**found["report"]),
    )


def gather(
    book: Book,
    file: str | None,
    environment: Mapping[str, str],
    options: Mapping[str, str],
    together: Callable[[Mapping[str, Any], Mapping[str, Given]], list[str]],
) -> dict[str, dict[str, Any]]:
    """What was given, checked, by section and name; ConfigError with a line for each mistake.

    `together`: mistakes that only show when values are seen together (see `problem`).
    """
    problems: list[str] = []
    given: dict[str, Given] = {}
    if file is not None:
        given |= _from_file(book, file, problems)
    given |= _from_environment(book, environment, problems)
    for path, text in options.items():
        _take(given, book.by_path[path], book.by_path[path].option, text, problems)

    values: dict[str, Any] = {}
    for path, (place, value) in given.items():
        try:
            values[path] = book.by_path[path].check(value)
        except Wrong as wrong:
            problems.append(problem(place, path, value, str(wrong)))
    problems += together(values, given)
    if problems:
        raise ConfigError("\n".join(sorted(problems, key=_order)))
    found: dict[str, dict[str, Any]] = {section: {} for section in book.sections}
    for path, value in values.items():
        found[book.by_path[path].section][book.by_path[path].name] = value
    return found


def child_environment() -> dict[str, str]:
    """The environment for nodes that get everything by options: without our own variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}


def _take(given: dict[str, Given], key: Key, place: str, text: str, problems: list[str]) -> None:
    """Text from the environment or an option, as what a TOML file would have held."""
    try:
        given[key.path] = Given(place, key.kind.from_text(text))
    except ValueError:
        given.pop(key.path, None)
        problems.append(problem(place, key.path, text, f"expected {key.kind.accepted}"))


def _from_environment(
    book: Book, environment: Mapping[str, str], problems: list[str]
) -> dict[str, Given]:
    given: dict[str, Given] = {}
    known = {key.variable: key for key in book.keys}
    ours = tuple(f"{PREFIX}{section}_".upper() for section in book.sections)
    for variable, text in sorted(environment.items()):
        if variable in known:
            _take(given, known[variable], variable, text, problems)
        elif variable.startswith(ours) and not _KUBERNETES.search(variable):
            near = nearest(variable, known)
            problems.append(
                f"{variable} = {_shown(text)}: unknown key{near or '; see docs/config.md'}"
            )
    return given


def _from_file(book: Book, file: str, problems: list[str]) -> dict[str, Given]:
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        problems.append(f"{file}: {why}; expected a TOML file")
        return {}
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        place = f"{file}:{line[1] if line else text.count(chr(10)) + 1}"
        problems.append(f"{place}: not TOML: {error}")
        return {}
    lines = key_lines(text)
    given: dict[str, Given] = {}
    for section, content in document.items():
        place = f"{file}:{lines.get((section, ''), 1)}"
        if section not in book.sections:
            what = f"[{section}]" if isinstance(content, dict) else f"{section} = {_shown(content)}"
            moved = [key.path for key in book.keys if key.name == section]
            near = f"; nearest: {moved[0]}" if moved else nearest(section, book.sections)
            accepted = ", ".join(f"[{name}]" for name in book.sections)
            problems.append(f"{place}: {what}: unknown; the sections are {accepted}{near}")
        elif not isinstance(content, dict):
            problems.append(problem(place, section, content, f"a section, [{section}]"))
        else:
            for name, value in content.items():
                at = f"{file}:{lines.get((section, name), lines.get((section, ''), 1))}"
                if f"{section}.{name}" in book.by_path:
                    given[f"{section}.{name}"] = Given(at, value)
                else:
                    problems.append(
                        problem(at, f"{section}.{name}", value, _unknown(book, section, name))
                    )
    return given


def _unknown(book: Book, section: str, name: str) -> str:
    """What to say about a key that is not there: the nearest one, else all of its section."""
    here = [key.name for key in book.keys if key.section == section]
    elsewhere = [key.path for key in book.keys if key.name == name]
    if elsewhere:
        return f"unknown key; nearest: {elsewhere[0]}"
    if close := difflib.get_close_matches(name, here, 1):
        return f"unknown key; nearest: {section}.{close[0]}"
    if close := difflib.get_close_matches(name, [key.name for key in book.keys], 1):
        return f"unknown key; nearest: {next(k.path for k in book.keys if k.name == close[0])}"
    return f"unknown key; [{section}] has {', '.join(here)}"


def key_lines(text: str) -> dict[tuple[str, str], int]:
    """The line of each (section, key), and of each (section, ''), which tomllib does not tell.

    A scan by line: enough for files as people write them. What it misses is reported at the line of
    its section.
    """
    found: dict[tuple[str, str], int] = {}
    section = ""
    for at, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*[\"']?([^\[\]\"'.]+?)[\"']?\s*[\].]", line):
            section = header[1]
            found.setdefault((section, ""), at)
        elif pair := re.match(r"\s*([\w.\-\"' ]+?)\s*=", line):
            parts = [part.strip(" \"'") for part in pair[1].split(".")]
            path = [section, *parts] if section else parts
            found.setdefault((path[0], ""), at)
            if len(path) > 1:
                found.setdefault((path[0], path[1]), at)
    return found


# -- what only shows when values are seen together -----------------------------------------------


def _together(values: Mapping[str, Any], given: Mapping[str, Given]) -> list[str]:
    problems: list[str] = []

    def wrong(path: str, accepted: str) -> None:
        place, value = given.get(path, Given("default", values.get(path)))
        problems.append(problem(place, path, value, accepted))

    listen: str = values.get(
        "node.listen", NodeConfig().listen if "node.listen" not in given else ""
    )
    own = [address for address in (listen, values.get("node.advertise")) if address]
    peers: Collection[str] = values.get("node.peers", ())
    for peer in peers:
        named = peer == STDIN or peer.startswith(DNS)
        if not named and any(same_place(peer, address) for address in own):
            wrong(
                "node.peers", f"{peer} is this node itself; name others, or nobody to found a run"
            )
    if values.get("node.found") is False and not peers and not _failed("node.peers", values, given):
        wrong("node.found", "true, or name peers to join")
    problems += _subnets(values, given)
    if (
        values.get("train.rule") == "average"
        and not parse_codec(values.get("train.codec", "fp32")).plain
    ):
        wrong("train.codec", "fp32 with rule average, which exchanges weights as they are")
    if "train.generator" in values and values.get("node.role") == "generator":
        wrong("train.generator", "none: a generator makes its batches itself")
    if "train.generator" in values and values.get("train.rule") == "average":
        wrong(
            "train.generator",
            "only with rule sum: what becomes of a batch is seen in the clocks of updates",
        )
    if "train.shard" in values and values["train.shard"].of(values.get("node.name", "")) is None:
        wrong("train.shard", "only with a node.name that ends in a number, such as murmurate-3")
    if listen and wildcard(split_address(listen)[0]) and "node.advertise" not in given:
        wrong("node.listen", "all interfaces; say with advertise where others reach this node")
    return problems + listening("node", listen, values, given)


def listening(
    section: str, listen: str, values: Mapping[str, Any], given: Mapping[str, Given]
) -> list[str]:
    """What is wrong with where a program listens; empty `listen`: that was said already."""
    problems: list[str] = []

    def wrong(path: str, accepted: str) -> None:
        place, value = given.get(path, Given("default", values.get(path, listen)))
        problems.append(problem(place, path, value, accepted))

    if metrics := values.get("metrics.listen"):
        at, metrics_port = split_address(metrics)
        if listen and same_place(metrics, listen):
            wrong("metrics.listen", f"another port than {section}.listen")
        elif metrics_port and (why := cannot_listen(at, metrics_port)):
            wrong("metrics.listen", f"{why}; another port, or 0 for a free one")
    if not listen:
        return problems
    host, port = split_address(listen)
    insecure = f"{section}.insecure"
    if not loopback(host) and not values.get(insecure) and not _failed(insecure, values, given):
        wrong(
            f"{section}.listen",
            "reachable from other machines, and nothing is encrypted yet: say insecure = true in"
            f" [{section}] (or --insecure) to accept that, or listen on 127.0.0.1",
        )
    elif port and (why := cannot_listen(host, port)):
        wrong(f"{section}.listen", f"{why}; another port, or 0 for a free one")
    return problems


def _subnets(values: Mapping[str, Any], given: Mapping[str, Given]) -> list[str]:
    """What mode ist needs, and what only the other mode can use."""
    coordinator = values.get("ist.coordinator")
    found: dict[str, str] = {}
    if values.get("train.mode") != "ist":
        found |= {path: "only with mode ist" for path in values if path.startswith("ist.")}
        if values.get("train.rule") in IST_RULES:
            found["train.rule"] = f"{' or '.join(RULES)} with mode gossip"
    else:
        whose = "none with mode ist: it is the coordinator's"
        paths = ("train.rule", "train.every", "train.samples", "checkpoint.dir", "report.weights")
        if coordinator != STDIN:  # else it is for the launcher, which starts the coordinator too
            found |= dict.fromkeys(paths, whose)
        if values.get("train.rule") in RULES:
            found["train.rule"] = f"{', '.join(IST_RULES)} with mode ist"
        if values.get("node.peers") != (STDIN,):
            found["node.peers"] = "none with mode ist: only the coordinator is spoken to"
        others = ("train.generator", "train.codec", "train.topology", "report.audit")
        found |= dict.fromkeys(others, "only with mode gossip")
        found = {path: said for path, said in found.items() if path in values}
        if coordinator is None and not _failed("ist.coordinator", values, given):
            found["ist.coordinator"] = "where it is, such as 10.0.0.5:7100: mode ist needs one"
    problems = []
    for path, accepted in found.items():
        place, value = given.get(path, Given("default", values.get(path)))
        problems.append(problem(place, path, value, accepted))
    return problems


def _failed(path: str, values: Mapping[str, Any], given: Mapping[str, Given]) -> bool:
    return path in given and path not in values


# -- sentences -----------------------------------------------------------------------------------


def problem(place: str, path: str, value: object, accepted: str) -> str:
    return f"{place}: {path} = {_shown(value)}: {accepted}"


def _order(problem: str) -> int:
    """Those of the file first, line by line; the others as they came."""
    line = re.match(r".*?:(\d+): ", problem)
    return int(line[1]) if line else 1 << 30


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"

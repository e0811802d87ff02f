"""The configuration of a node, put together: what only shows when values are seen together.

Which keys there are is `programs.keys.table`, how values are found `programs.keys.gather`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from murmurate.core.codecs.choice import parse_codec
from murmurate.core.gossip.ways import DATA, data_problem, mixes_weights, strength_problem
from murmurate.core.synchronous.rules import GROUPED, GROUPS_EA_WILD, HIERARCHICAL, RULES_IN_STEP
from murmurate.core.values.addresses import DNS, loopback, same_place, split_address, wildcard
from murmurate.core.values.hub_settings import problems as hub_problems
from murmurate.core.values.member_half import RULES_OF
from murmurate.core.values.recipe import problems
from murmurate.errors import ConfigError
from murmurate.programs.keys.gather import Given, gather, problem
from murmurate.programs.keys.key import MEMBER, NODE, Key, Role, written
from murmurate.programs.keys.kinds import STDIN, cannot_listen
from murmurate.programs.keys.table import NODE_KEYS, RULES, Config, NodeConfig, TrainConfig

KEYS = NODE_KEYS.keys

ROLE_OF = {
    "gossip": Role.PEER,
    **dict.fromkeys(RULES_IN_STEP, Role.IN_STEP),
    "ist": Role.SUBNETS,
    "hub": Role.WHOLE,
}
"""What a node is, by its mode."""


# -- putting it together -------------------------------------------------------------------------


def load(
    file: str | None = None,
    environment: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> Config:
    """The configuration; ConfigError with one line for each thing that is wrong.

    `options` are texts by path, such as {"train.lr": "0.1"}.
    """
    found = gather(NODE_KEYS, file, environment or {}, options or {}, _together)
    if "shard" in found["train"]:
        found["train"]["shard"] = found["train"]["shard"].of(found["node"].get("name", ""))
    if (rules := RULES_IN_STEP.get(found["train"].get("mode", ""))) is not None:
        found["train"].setdefault("rule", rules[0])
    made: Config = NODE_KEYS.made(found)
    return made


def check_budget(config: Config) -> None:
    """ConfigError if something is to change by the part of a budget, and there is none.

    Not for whoever starts several nodes: there the workload's own budget is taken.
    """
    train = config.train
    told = config.node.peers == (STDIN,) or train.mode in RULES_OF  # by the coordinator
    budget = train.samples or train.own_samples
    if train.recipe.changes and not (budget or train.seconds or told):
        raise ConfigError(
            "train.schedule, train.warmup, train.batch_warmup: go by the part of the budget that is"
            " spent: say samples or seconds"
        )


# -- what only shows when values are seen together -----------------------------------------------


def _together(values: Mapping[str, Any], given: Mapping[str, Given]) -> list[str]:
    found: list[str] = recipe_problems(values, given)

    def wrong(path: str, accepted: str) -> None:
        place, value = given.get(path, Given("default", values.get(path)))
        found.append(problem(place, path, value, accepted))

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
    found += _of_the_mode(values, given)
    rule = values.get("train.rule", TrainConfig().rule)
    if mixes_weights(rule) and not parse_codec(values.get("train.codec", "auto")).plain:
        wrong("train.codec", f"fp32 with rule {rule}, which exchanges weights as they are")
    if what := data_problem(rule, values.get("train.peers_data", DATA[0])):
        wrong("train.peers_data", what)
    gossips = values.get("train.mode", "gossip") == "gossip"
    if gossips and (what := strength_problem(rule, values.get("train.strength"))):
        wrong("train.strength", what)
    if values.get("node.role") == "generator":
        wrong("node.role", "peer; batches are dealt by: murmurate coordinator --mode batches")
    if "train.generator" in values and mixes_weights(rule):
        wrong(
            "train.generator",
            "not with rule average: an update says which batches are in it, shared weights do not",
        )
    on_the_way = ("train.schedule", "train.warmup", "train.batch_warmup")
    for path in on_the_way if "train.generator" in values else ():
        if values.get(path, usual := getattr(TrainConfig(), path[6:])) != usual:
            wrong(path, "not with a generator: how far the run is, is known to it alone")
    if "train.own_samples" in values and {"train.samples", "train.generator"} & values.keys():
        wrong("train.own_samples", "either this, or samples of the whole swarm, or a generator")
    if "train.shard" in values and values["train.shard"].of(values.get("node.name", "")) is None:
        wrong("train.shard", "only with a node.name that ends in a number, such as murmurate-3")
    if listen and wildcard(split_address(listen)[0]) and "node.advertise" not in given:
        wrong("node.listen", "all interfaces; say with advertise where others reach this node")
    return found + listening("node", listen, values, given)


def recipe_problems(values: Mapping[str, Any], given: Mapping[str, Given]) -> list[str]:
    """What of a recipe does not go together."""
    said = {
        path.removeprefix("train."): value
        for path, value in values.items()
        if path.startswith("train.")
    }
    found = []
    for name, accepted in problems(said).items():
        place, value = given.get(path := f"train.{name}", Given("default", None))
        found.append(problem(place, path, value, accepted))
    return found


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


def _of_the_mode(values: Mapping[str, Any], given: Mapping[str, Given]) -> list[str]:
    """What the mode and its rule need, and what they have not."""
    coordinator, mode = values.get("ist.coordinator"), values.get("train.mode", "gossip")
    rule, role = values.get("train.rule"), ROLE_OF[mode]
    found: dict[str, str] = {}
    for path, value in values.items():
        key = NODE_KEYS.by_path[path]
        started_too = coordinator == STDIN and _is_the_coordinators(key, mode)
        if not role & key.roles and not started_too and (why := _not_for(key, value, mode)):
            found[path] = why
    rules = {**RULES_OF, **RULES_IN_STEP, "gossip": RULES}[mode]
    if rule is not None and rule not in rules:
        found["train.rule"] = f"{(', ' if role & MEMBER else ' or ').join(rules)} with mode {mode}"
    elif mode == "hub" and coordinator == STDIN:
        said = {path[4:]: value for path, value in values.items() if path.startswith("hub.")}
        wrong = hub_problems(rule or "async", said, None)
        found |= {f"hub.{name}": accepted for name, accepted in wrong.items()}
    if "train.group" in values and rule not in (HIERARCHICAL, *GROUPED):
        found["train.group"] = "only with mode allreduce and rule hierarchical or groups"
    if "train.regroup" in values and rule not in GROUPED:
        found["train.regroup"] = f"only with mode allreduce and rule {' or '.join(GROUPED)}"
    if role is Role.IN_STEP and rule != GROUPS_EA_WILD and coordinator is not None:
        found["ist.coordinator"] = f"only with mode ist or hub, or rule {GROUPS_EA_WILD}"
    if rule == GROUPS_EA_WILD and role is Role.IN_STEP and coordinator is None:
        found["ist.coordinator"] = "where the hub is, of rule ea-wild, such as 10.0.0.5:7100"
    if role & MEMBER:
        if values.get("node.peers", (STDIN,)) != (STDIN,):
            found["node.peers"] = f"none with mode {mode}: only the coordinator is spoken to"
        if coordinator is None and not _failed("ist.coordinator", values, given):
            found["ist.coordinator"] = f"where it is, such as 10.0.0.5:7100: mode {mode} needs one"
    out = []
    for path, accepted in found.items():
        place, value = given.get(path, Given("default", values.get(path)))
        out.append(problem(place, path, value, accepted))
    return out


def _is_the_coordinators(key: Key, mode: str) -> bool:
    of_the_mode = mode == "hub" if key.section == "hub" else bool(ROLE_OF[mode] & MEMBER)
    return of_the_mode and Role.COORDINATOR in key.roles


def _not_for(key: Key, value: object, mode: str) -> str:
    """Why a node of this mode does not take a key that is not for it; empty: as it is anyway."""
    if _is_the_coordinators(key, mode):
        return f"none with mode {mode}: it is the coordinator's"
    if not key.roles & NODE:
        return "only with mode hub"
    if ROLE_OF[mode] is Role.IN_STEP and key.path == "train.codec":  # all is sent as it is
        return "" if parse_codec(str(value)).plain else f"fp32 with mode {mode}"
    if ROLE_OF[mode] is Role.IN_STEP and Role.PEER in key.roles:
        if key.default is None:
            return f"none with mode {mode}"
        return f"{written(key.default)} with mode {mode}" if value != key.default else ""
    *others, last = (each for each, role in ROLE_OF.items() if role & key.roles)
    return f"only with mode {', '.join(others)}{' or ' if others else ''}{last}"


def _failed(path: str, values: Mapping[str, Any], given: Mapping[str, Given]) -> bool:
    return path in given and path not in values


__all__ = [
    "KEYS",
    "Config",
    "TrainConfig",
    "check_budget",
    "listening",
    "load",
    "recipe_problems",
]

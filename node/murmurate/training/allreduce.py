"""Mode `allreduce`: what was asked for is checked and put together, and becomes a
`SynchronousSwarm`."""

from __future__ import annotations

import torch

from murmurate.core.codecs.choice import AUTO
from murmurate.core.gossip.ways import MEMBERS_ONLY
from murmurate.core.layout import Layout
from murmurate.core.membership.timing import Timing
from murmurate.core.synchronous.rules import (
    ALLREDUCE,
    GROUP_SIZE,
    GROUPED,
    GROUPS_EA_WILD,
    HIERARCHICAL,
    RULES_IN_STEP,
    group_of,
)
from murmurate.core.values.addresses import split_address
from murmurate.edge.net.collective import MeetingPlace
from murmurate.edge.net.transport import Transport
from murmurate.edge.runtime.malloc import keep_memory
from murmurate.edge.runtime.node_state import Settings
from murmurate.edge.runtime.runtime import Runtime
from murmurate.errors import ConfigError
from murmurate.training.across import Opens
from murmurate.training.gossip import GOODBYE_S, GossipOptions, transport_for
from murmurate.training.statistics import first_weights
from murmurate.training.synchronous import SynchronousSwarm
from murmurate.watch.pages import pages


def rule_in_step(mode: str, rule: str) -> str:
    """The rule of this mode, its first one where none was asked for."""
    rules = RULES_IN_STEP[mode]
    if rule == GossipOptions.DEFAULT_RULE:
        return rules[0]
    if rule not in rules:
        raise ConfigError(f"rule {rule!r}: mode {mode!r} has {' and '.join(map(repr, rules))}")
    return rule


def check_in_step(mode: str, options: GossipOptions) -> None:
    """What these modes have not is said, and what is wrong in every mode."""
    absent = {
        "every": (options.every, None),
        "data": (options.data, "same"),
        "topology": (options.topology, "full"),
        "codec": ("fp32" if options.codec == AUTO else options.codec, "fp32"),
        "checkpoint": (options.checkpoint, None),
    }
    for key, (value, default) in absent.items():
        if value != default:
            raise ConfigError(f"{key} {value!r}: mode {mode!r} has none")
    options.check_common()


def start(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    options: GossipOptions,
    group: int | None = None,
    transport: Transport | None = None,
    *,
    regroup: int | None = None,
    coordinator: str | None = None,
) -> SynchronousSwarm:
    """Join the run, and return once its weights are in the model."""
    rule = rule_in_step(ALLREDUCE, options.rule)
    check_in_step(ALLREDUCE, options)
    if group is not None and rule not in (HIERARCHICAL, *GROUPED):
        raise ConfigError(f"group {group}: only with rule 'hierarchical' or 'groups'")
    if regroup is not None and rule not in GROUPED:
        raise ConfigError(f"regroup {regroup}: only with rule {' or '.join(map(repr, GROUPED))}")
    if regroup is not None and regroup < 1:
        raise ConfigError(f"regroup {regroup}: expected 1 or more steps")
    if rule == GROUPS_EA_WILD and coordinator is None:
        raise ConfigError(
            f"coordinator: rule {rule!r} needs the address of a hub of rule 'ea-wild'"
        )
    if rule != GROUPS_EA_WILD and coordinator is not None:
        raise ConfigError(
            f"coordinator {coordinator!r}: only with mode 'ist' or 'hub', or rule"
            f" {GROUPS_EA_WILD!r}"
        )
    if group is not None and group < 1:
        raise ConfigError(f"group {group}: expected 1 or more members in a group")
    size = group or GROUP_SIZE
    if rule in GROUPED and group_of(options.own_name, size) is None:
        raise ConfigError(
            f"name {options.own_name!r}: with rule {rule!r} it says to which group a member"
            " belongs: it must end in a number, such as node-3"
        )
    layout, parameters = Layout.of(model, statistics=True)
    runtime = runtime_in_step(model, layout, parameters, options, rule, transport)
    try:
        listen = split_address(options.listen)[0]
        place = MeetingPlace(listen, split_address(runtime.figures.address)[0])
        founder = not runtime.figures.came_to_others
        parts = (runtime, layout, parameters, model, optimizer, place)
        if rule in GROUPED:
            from murmurate.training.groups import GroupedSwarm

            swarm: SynchronousSwarm = GroupedSwarm(
                *parts,
                founder=founder,
                size=size,
                opens=_opens(options, coordinator),
                regroup=regroup,
                seed=options.seed,
            )
        else:
            inside = size if rule == HIERARCHICAL else 0
            swarm = SynchronousSwarm(*parts, founder=founder, group=inside)
    except BaseException:
        runtime.stop()
        raise
    swarm.credentials = options.credentials
    try:
        swarm.enter(options.join_timeout_s)
    except BaseException as error:
        swarm.leave(timeout_s=0.0 if isinstance(error, Exception) else GOODBYE_S)
        raise
    return swarm


def _opens(options: GossipOptions, coordinator: str | None) -> Opens:
    """How whoever speaks for a group comes to the others."""
    if coordinator is None:
        from murmurate.training.across_gossip import GossipAcross

        return lambda speaker: GossipAcross.open(speaker, options)
    from murmurate.training.across_hub import HubAcross

    hub, credentials = coordinator, options.credentials
    return lambda speaker: HubAcross.open(speaker, hub, credentials)


def runtime_in_step(
    model: torch.nn.Module,
    layout: Layout,
    parameters: list[torch.nn.Parameter],
    options: GossipOptions,
    rule: str,
    transport: Transport | None,
) -> Runtime:
    """Membership, figures and pages; what is trained does not go through it."""
    keep_memory()
    settings = Settings(
        run=options.run,
        name=options.own_name,
        peers=tuple(options.peers),
        found=options.may_found(),
        careful=options.found is None,
        rule=rule,
        way=MEMBERS_ONLY,
        timing=options.timing or Timing(),
        join_timeout_s=options.join_timeout_s,
        seed=options.seed,
    )
    weights = first_weights(layout, parameters, model)
    runtime = Runtime(settings, layout, weights, transport or transport_for(options))
    if options.metrics is not None:
        runtime.serve(pages(runtime, options.metrics, options.credentials))
    runtime.start()
    return runtime

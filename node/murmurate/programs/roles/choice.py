"""Which role a node has, by its configuration. Each is loaded only where it is played."""

from __future__ import annotations

from murmurate.core.values.member_half import RULES_OF
from murmurate.programs.keys.table import Config
from murmurate.programs.run import ProgramRole


def role_of(config: Config) -> ProgramRole:
    """A member of a coordinator, or a peer."""
    if config.train.mode in RULES_OF:
        from murmurate.programs.roles.subnet_member import MemberRole

        return MemberRole(config)
    from murmurate.programs.roles.node import PeerRole

    return PeerRole(config)

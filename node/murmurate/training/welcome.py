"""Whether a member can work for the coordinator that welcomes it, and what it is asked to do."""

from __future__ import annotations

from murmurate.core.values.member_half import RULES_OF, MemberHalf, pipelined
from murmurate.edge.net import coordinator_wire as wire
from murmurate.errors import SchemaMismatch


def half_asked_for(hello: wire.WorkHello, welcome: wire.WorkWelcome) -> MemberHalf:
    """What the coordinator's rule asks of this member. SchemaMismatch: it is another run's, or
    does what this member does not know."""
    if welcome.run != hello.run:
        raise SchemaMismatch(
            f"the coordinator assembles run {welcome.run!r}, this is {hello.run!r}"
        )
    mode, rules = welcome.mode or "ist", RULES_OF[hello.mode]
    if mode != hello.mode:
        raise SchemaMismatch(f"the coordinator is of mode {mode!r}, this member of {hello.mode!r}")
    half = rules.get(welcome.rule)
    if half is None:
        raise SchemaMismatch(
            f"the coordinator's rule is {welcome.rule!r}, this member knows {', '.join(rules)}"
        )
    return pipelined(half) if welcome.pipelined else half

"""Names that are needed before torch is loaded."""

from murmurate.core.values.member_half import IST_RULES

RULES = tuple(IST_RULES)
PORT = 7100
METRICS_PORT = 9464

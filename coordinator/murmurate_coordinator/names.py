"""Names that are needed before torch is loaded."""

from murmurate.core.values.member_half import HUB_RULES, IST_RULES, RULES_OF

RULES = tuple(IST_RULES)
ALL_RULES = tuple(dict.fromkeys((*IST_RULES, *HUB_RULES)))
MODES = tuple(RULES_OF)
PORT = 7100
METRICS_PORT = 9464

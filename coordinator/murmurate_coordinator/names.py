"""Names that are needed before torch is loaded."""

from murmurate.core.values.member_half import HUB_RULES, IST_RULES, RULES_OF

RULES = tuple(IST_RULES)
BATCHES, PULL = "batches", "pull"
MODES = (*RULES_OF, BATCHES)
ALL_RULES = tuple(dict.fromkeys((*IST_RULES, *HUB_RULES, PULL)))
PORT = 7100
METRICS_PORT = 9464

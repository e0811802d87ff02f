"""Names that are needed before torch is loaded."""

RULES = ("sync", "once", "async", "lease", "fedavg")
BARRIER = ("sync", "once", "fedavg")
"""Rules under which all wait for all."""
PORT = 7100
METRICS_PORT = 9464

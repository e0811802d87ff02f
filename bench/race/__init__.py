"""Racers of bench/time_to_accuracy.py: each contender's peers as plain scripts, and who judges."""

import os as _os
from contextlib import suppress as _suppress
from pathlib import Path as _Path

# Where Linux shares processors out by session (autogroups), `nice` counts only inside a session;
# each racer begins one of its own, as do the workers of torchrun. So each takes the priority that
# it was started with over for its session, before it imports anything large.
with _suppress(OSError):  # no autogroups, or no right to
    _priority = str(_os.getpriority(_os.PRIO_PROCESS, 0))
    _Path("/proc/self/autogroup").write_text(_priority)

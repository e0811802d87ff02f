"""A process that does a race's cells ends with the race: nobody else would ever end it.

A race that was killed is started again; what its cells would go on doing meanwhile would take the
machine from the new ones. (`murmurate up`, of cells in real time, ends by itself when nobody reads
what it says.)
"""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """End as soon as this process is no more, which may be already. Without prctl: after the cell
    at the earliest."""
    try:
        prctl = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return
    prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)

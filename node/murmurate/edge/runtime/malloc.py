"""Keep freed memory in the process.

glibc gives each freed megabyte back to the kernel and faults it in again for the next piece: 0.6 s
of page faults per GB, the largest single cost of a transfer (measured). Two thresholds and a pad
end that; peak memory stays the same. One arena instead of one for each thread of gRPC: what one of
them has freed the next can use (20 MiB of a node with a model of 100 MB).
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -2, -3, -8


def keep_memory() -> bool:
    """Tell glibc to keep what it has. False: there is no glibc here, nothing was changed."""
    try:
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018 - others have a mallopt that means something else
        mallopt = libc.mallopt
    except (OSError, AttributeError):
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    mallopt(M_ARENA_MAX, 1)
    # Setting one of them alone would freeze the other at its small default.
    kept = mallopt(M_MMAP_THRESHOLD, 1 << 30) or mallopt(M_MMAP_THRESHOLD, 32 << 20)
    return bool(kept and mallopt(M_TRIM_THRESHOLD, 2_000_000_000) and mallopt(M_TOP_PAD, 64 << 20))

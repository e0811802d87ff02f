"""Train one model across a flock of unequal machines.

    with murmurate.join(model, optimizer, run="mnist", peers=["node-0:7000"]) as swarm:
        ...  # the training loop, as it is

Importing this package must stay cheap: torch costs 2 to 3 s and is only loaded by what needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from murmurate.core.membership.timing import Timing
    from murmurate.training.join import join
    from murmurate.training.member import Member
    from murmurate.training.swarm import Swarm

__version__ = "0.1.0"
__all__ = ["Member", "Swarm", "Timing", "__version__", "join"]

_HOMES = {
    "join": "murmurate.training.join",
    "Swarm": "murmurate.training.swarm",
    "Member": "murmurate.training.member",
    "Timing": "murmurate.core.membership.timing",
}


def __getattr__(name: str) -> Any:
    """Load what needs torch when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'murmurate' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)

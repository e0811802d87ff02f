"""A simulator that tries to break the swarm: virtual time, seeded faults, the production core.

    from murmurate.study.sim import Options, simulate
    result = simulate(7, Options(topology="tree"))

One seed decides everything: time, network, disks, crashes, who joins and leaves. First a phase with
faults, then one without, in which all live peers must come to the same set and the same weights.
Whenever anything changes the promises are checked against plain Python sets kept beside the compact
clocks.
Nothing of `murmurate.core` is copied or replaced here.
"""

from murmurate.study.sim.options import Options
from murmurate.study.sim.world import Result, World, simulate

__all__ = ["Options", "Result", "World", "simulate"]

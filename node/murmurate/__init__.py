"""Train one model across a flock of unequal machines.

Importing this package must stay cheap: torch costs 2 to 3 s and is only loaded by what needs it.
"""

__version__ = "0.1.0"

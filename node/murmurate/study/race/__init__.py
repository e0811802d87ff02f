"""Solvers against each other: the same workloads, settings and rng seeds, one table."""

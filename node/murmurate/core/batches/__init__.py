"""Batches of a generator (paper 000): each goes into exactly one update."""

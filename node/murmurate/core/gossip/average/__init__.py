"""Gossip of weights, rule `average`."""

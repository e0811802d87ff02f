"""Racers of bench/time_to_accuracy.py: each contender's peers as plain scripts, and who judges."""

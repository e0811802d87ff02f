"""What may leave the clocks, and how all members agree on it."""

"""What to expect of a swarm before it runs, and which way would suit it."""

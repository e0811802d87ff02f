"""One node's part in a swarm that gossips: `protocol` says what every way of gossip obeys."""

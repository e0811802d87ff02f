"""The edge: what crosses the border between this process and the network."""

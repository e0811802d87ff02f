"""What lives beside training: one thread, one event loop."""

"""What a receiver makes of an update, by how stale it is: for studies."""

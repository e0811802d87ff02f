"""The `murmurate` command."""

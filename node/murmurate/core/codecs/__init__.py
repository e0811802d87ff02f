"""Updates in fewer bytes."""

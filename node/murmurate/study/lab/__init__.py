"""Pictures of runs (extra `lab`)."""

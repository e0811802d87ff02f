"""What a person or a container starts."""

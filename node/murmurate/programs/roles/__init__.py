"""What `murmurate node` can be."""

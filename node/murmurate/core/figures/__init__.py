"""What is counted and forecast."""

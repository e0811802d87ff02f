"""What an origin makes of a span of steps."""

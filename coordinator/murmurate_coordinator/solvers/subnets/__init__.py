"""Independent subnet training (paper 001): who gets which units, and what they come to."""

"""What a training script sees."""

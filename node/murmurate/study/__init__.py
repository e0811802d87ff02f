"""What nobody needs for training: simulators, virtual time, pictures."""

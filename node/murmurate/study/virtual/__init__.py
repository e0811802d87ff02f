"""Training in virtual time: the production core, many peers in one process."""

"""Training in step: who is in the group, and in which order they are summed. Pure."""

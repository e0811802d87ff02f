"""The mini-batch generator of paper 000 as a solver: batches are dealt, and no model is held."""

"""What a person or a Prometheus sees of a running node: figures, forecasts, pages.

Nothing here is on the training path. A node counts as it goes (`tally`); this reads the counters
when somebody asks, and a few times a second for what needs two readings: rates, sliding means.
"""

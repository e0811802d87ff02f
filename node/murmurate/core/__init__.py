"""The pure core: no time, randomness, threads, sockets, files or logging.

Time, randomness and messages come in as arguments; what should happen comes out as values. The same
objects run under gRPC and in the simulator, which is how they can be proven right.
"""

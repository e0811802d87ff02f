"""The edge: what crosses the border between this process and the network.

What gRPC is told by its environment, which it reads once, when it is imported. Whatever the user
has set there stays.
"""

import os
from importlib.metadata import version

# Its core's remarks about goaways and busy ports are not for users: what matters of them comes back
# as a status.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# Workers of a data loader are forks of a training process, and never speak gRPC: what its handlers
# do in a fork makes them crash (grpcio 1.85; tests/integration/test_fork.py).
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# Since 1.80 there is another poller, whose threads hand each message to one another: by it an
# exchange takes a tenth more time, and processor time (docs/benchmarks.md). Versions to come may
# not have this choice any more, and would complain.
if tuple(map(int, version("grpcio").split(".")[:2])) < (1, 86):
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")

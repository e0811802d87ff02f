"""The edge: what crosses the border between this process and the network."""

import os

# gRPC reads this once, when it is imported. Its core's remarks about goaways and busy ports are not
# for users: what matters of them comes back as a status.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

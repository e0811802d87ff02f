"""torchrun for one peer, which waits with everything imported until its time has come."""

from __future__ import annotations

import os
import sys

from torch.distributed import run

from race.track import Track


def main() -> None:
    track = Track.told()
    entry = track.entry
    if track.late:
        track.line_up()
    least = entry.options.get("least", entry.peers)
    host = entry.hosts[entry.peer]
    os.environ["GLOO_SOCKET_IFNAME"] = str(entry.options["device"])
    os.environ["OMP_NUM_THREADS"] = "1"
    # Said, because it is guessed by host name, and namespaces share one.
    said = {**entry.options["rendezvous"], "is_host": int(entry.peer == 0)}
    conf = ",".join(f"{key}={value}" for key, value in said.items())
    command = [
        f"--nnodes={least}:{entry.peers}",
        "--nproc-per-node=1",
        "--max-restarts=5",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={entry.hosts[0]}:{entry.ports[0]}",
        "--rdzv-id=race",
        f"--rdzv-conf={conf}",
        f"--local-addr={host}",
        "--monitor-interval=0.1",
        "--module",
        "race.ddp",
        sys.argv[-1],
    ]
    run.main(command)


if __name__ == "__main__":
    main()

"""A member of an IST run, as a program: trains the subnet it is given, and takes it easy.

python subnets.py ADDRESS NAME WIDTH
"""

from __future__ import annotations

import sys
import time

import torch

import murmurate
from murmurate import workloads
from murmurate.workloads.split import parse_split

PAUSE_S = 0.03


def main(address: str, name: str, width: float) -> None:
    torch.set_num_threads(1)
    workload = workloads.load("digits")
    model = workload.model()
    optimizer = workload.optimizer(model)
    share = workloads.DataShare(0, 1, parse_split("none"), 0, workload.batch_size)
    with murmurate.join(
        model,
        optimizer,
        run="murmurate",
        mode="ist",
        coordinator=address,
        name=name,
        width=width,
    ) as member:
        for batch in workload.batches(share):
            if member.stopped:
                break
            optimizer.zero_grad()
            loss = workload.loss(member.model, batch)
            loss.backward()
            optimizer.step()
            member.log(samples=workload.batch_size, loss=float(loss.detach()))
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))

"""A rank of DistributedDataParallel over gloo, started by torchrun (`race.ddp_agent`).

As torchrun's documentation has it: a checkpoint now and then, from which a restarted group goes on.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from race.track import Track

CHECKPOINT_S = 1.0
SETTLED_S = 2.0
"""A rank may see another's end this much before its own."""


def main() -> None:
    track = Track.told()
    entry = track.entry
    track.warm_up()
    dist.init_process_group("gloo")
    model = track.model()
    optimizer = track.optimizer(model)
    kept = Path(entry.folder) / "checkpoint.pt"
    if kept.exists():
        state = torch.load(kept, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    wrapped = torch.nn.parallel.DistributedDataParallel(
        model, gradient_as_bucket_view=True, static_graph=True
    )
    dist.barrier()
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    track.say("group", ranks=dist.get_world_size(), restarted=restarted)
    if not track.late:
        track.ready()
    track.line_up()
    due = time.monotonic() + CHECKPOINT_S
    try:
        for batch in track.laps(model):
            track.learn(wrapped, optimizer, batch)
            if entry.peer == 0 and time.monotonic() >= due:
                due = time.monotonic() + CHECKPOINT_S
                half = kept.with_suffix(".half")
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, half)
                half.rename(kept)
    except RuntimeError:
        if time.monotonic() < track.started + entry.seconds - SETTLED_S:
            track.say("failed", exchanged=track.steps)
            raise
    track.finish(model, exchanged=track.steps)
    os._exit(0)  # without destroy_process_group, which waits for who is gone already


if __name__ == "__main__":
    main()

"""A peer of hivemind's Optimizer with local updates, as tuned in `race.tuning`."""

from __future__ import annotations

import json
import logging
import re
import time
from pathlib import Path

import hivemind

from race.track import LIMIT_S, POLL_S, Track


class Met(logging.Handler):
    """How many each round of averaging was of: hivemind tells it to its log alone."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.peers: list[int] = []

    def emit(self, record: logging.LogRecord) -> None:
        if found := re.match(r"Averaged parameters with (\d+) peers", record.getMessage()):
            self.peers.append(int(found[1]))
        elif record.getMessage().startswith("Averaging failed"):
            self.peers.append(0)


def main() -> None:
    track = Track.told()
    entry = track.entry
    track.warm_up()
    model = track.model()
    if track.late:
        track.line_up()
    meeting = Path(entry.folder) / "meeting.json"
    deadline = time.monotonic() + LIMIT_S
    while entry.peer and not meeting.exists():
        assert time.monotonic() < deadline, "nobody to meet"
        time.sleep(POLL_S)
    dht = hivemind.DHT(
        initial_peers=json.loads(meeting.read_text()) if entry.peer else [],
        host_maddrs=[f"/ip4/{entry.hosts[entry.peer]}/tcp/{entry.ports[entry.peer]}"],
        start=True,
        use_ipfs=False,
    )
    if not entry.peer:
        half = meeting.with_suffix(".half")
        half.write_text(json.dumps([str(maddr) for maddr in dht.get_visible_maddrs()]))
        half.rename(meeting)
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="race",
        batch_size_per_step=track.workload.batch,
        params=model.parameters(),
        optimizer=track.workload.optimizer,
        verbose=True,
        **entry.options,
    )
    met = Met()
    logging.getLogger("hivemind.optim.state_averager").addHandler(met)
    if track.late:
        optimizer.load_state_from_peers()
    else:
        track.ready()
        track.line_up()
    for batch in track.laps(model):
        track.learn(model, optimizer, batch)
    track.finish(
        model,
        exchanged=sum(n > 1 for n in met.peers),
        groups=met.peers,
        epochs=optimizer.local_epoch,
    )
    # It is not shut down: that takes longer than the conductor waits, and the race is over.


if __name__ == "__main__":
    main()

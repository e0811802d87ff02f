"""A peer of Murmurate as it comes: `join` is told the run, a peer, and where it is reached."""

from __future__ import annotations

import murmurate
from race.track import LIMIT_S, Track


def main() -> None:
    track = Track.told()
    entry = track.entry
    track.warm_up()
    model = track.model()
    optimizer = track.optimizer(model)
    founder = f"{entry.hosts[0]}:{entry.ports[0]}"
    if track.late:
        track.line_up()
    swarm = murmurate.join(
        model,
        optimizer,
        run="race",
        peers=[founder] if entry.peer else [],
        listen=entry.address,
        insecure=not entry.address.startswith("127."),
        join_timeout_s=LIMIT_S,
        **entry.options,
    )
    if not track.late:
        track.ready()
        assert swarm.follow(track.has_begun, LIMIT_S)
    for batch in track.laps(model):
        track.learn(model, optimizer, batch)
    told = swarm.progress()
    track.finish(
        model,
        bytes_sent=told.bytes_sent,
        published=told.published,
        applied=told.applied,
        exchanged=told.applied - told.published,
        staleness=told.staleness.mean,
        rejected=dict(told.rejected),
    )
    swarm.leave()


if __name__ == "__main__":
    main()

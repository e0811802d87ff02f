"""One process that trains by itself."""

from __future__ import annotations

from race.track import Track


def main() -> None:
    track = Track.told()
    track.warm_up()
    model = track.model()
    optimizer = track.optimizer(model)
    track.ready()
    track.line_up()
    for batch in track.laps(model):
        track.learn(model, optimizer, batch)
    track.finish(model)


if __name__ == "__main__":
    main()

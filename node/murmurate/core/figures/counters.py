"""What a node has counted so far: the source of its report, its progress and its metrics."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from murmurate.core.codecs import span
from murmurate.core.effect import Applied, Drop
from murmurate.core.figures.learning import Learning
from murmurate.core.figures.progress import Neighbour, Progress, Staleness
from murmurate.core.gossip.average.push_sum import Share
from murmurate.core.message import Push, Snapshot
from murmurate.core.staleness import Summary

DROPS_THAT_ARE_REFUSALS = frozenset(("far", "retired", "stale"))
"""Of the drops only these are updates that will not be in these weights; others come again."""
STEP_BOUNDS_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 30.0, 60.0),
)
"""Upper bounds of the histogram of steps; what takes longer is counted beyond."""
NAMES_MAX, OTHER = 32, "other"
"""So many peers are counted by name, those that came first; the rest together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What a training script has found out; None: nothing new. Names are those of `Tally`."""

    NUMBERS: ClassVar[tuple[str, ...]] = (
        *("loss", "test_loss", "accuracy", "validation_loss", "validation_accuracy"),
        "flops_per_sample",
    )
    loss: float | None = None
    test_loss: float | None = None
    accuracy: float | None = None
    accuracy_of: Sequence[float] | None = None
    validation_loss: float | None = None
    validation_accuracy: float | None = None
    flops_per_sample: float | None = None


class Tally:
    """Counters of one node. Whoever changes them holds the runtime's lock."""

    def __init__(self) -> None:
        self.published = 0
        self.applied = 0
        self.duplicates = 0
        self.rejected: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.staleness = Summary()
        """Of what was applied while this node was level with the others."""
        self.catching_up = Summary()
        """Of what was applied before: it is old because this node was away."""
        self.level = True
        """Whether this node lacks no more than one that trains along does."""
        self._level_from: int | None = None
        """Updates applied when it came level, less those it may have lacked then; None: it was
        never away."""
        self.sent_by_codec: Counter[str] = Counter()
        """Bytes of tensors given to the links."""
        self.sent_to: dict[str, int] = {}
        """The same bytes by receiver."""
        self.applied_of: dict[str, int] = {}
        self.staleness_of: dict[str, int] = {}
        """By origin: how many were applied, and their staleness together."""
        self.steps = [0] * (len(STEP_BOUNDS_S) + 1)
        """Local steps by how long they took; see `STEP_BOUNDS_S`."""
        self.steps_s = 0.0
        self.samples = 0
        self.samples_seen = 0
        """Of those, what was counted by looking at the model's calls, until somebody counts."""
        self.samples_told = False
        self._samples_before = self._steps_before = 0
        """Of an earlier life, taken over."""
        self.stopped = False
        """Somebody here said that the run is over."""
        self.first_batches: tuple[int, ...] = ()
        """What they were, in a number each (`core.figures.same_batches`)."""
        self.checkpoint_failures = 0
        self.learning = Learning()
        self.loss = math.nan
        """Of training; the next five are of the last evaluation."""
        self.test_loss = math.nan
        self.accuracy = math.nan
        self.accuracy_of: tuple[float, ...] = ()
        """By class."""
        self.validation_loss = math.nan
        self.validation_accuracy = math.nan
        self.flops_per_sample = math.nan
        """Of the model, forward."""
        self.wait_s = 0.0
        self.began: float | None = None
        """When the first batch was started."""
        self.ended: float | None = None
        self.update_steps = math.nan
        """Local steps in an update, of late."""
        self._compute_s = 0.0
        self._steps_published = 0
        self._version = 0

    def apply(self, effect: Applied) -> None:
        self.applied += len(effect.dots)
        count, total = self.applied_of, self.staleness_of
        for dot, staleness in zip(effect.dots, effect.staleness, strict=True):
            seen = self.catching_up if self._of_before(staleness) else self.staleness
            seen.add(staleness)
            origin = _few(count, dot.origin)
            count[origin] = count.get(origin, 0) + 1
            total[origin] = total.get(origin, 0) + staleness

    def came_level(self, lacking_max: int) -> None:
        """This node, which was away, lacks no more than so many updates."""
        self.level, self._level_from = True, self.applied - lacking_max

    def _of_before(self, staleness: int) -> bool:
        """Whether an update is old only because this node was away. Of those that it still lacked
        when it came level: who makes one after that has in it all that this node lacked by then."""
        if not self.level:
            return True
        return self._level_from is not None and staleness > self.applied - self._level_from

    def drop(self, effect: Drop) -> None:
        if effect.reason == "duplicate":
            self.duplicates += effect.count
        elif effect.reason in DROPS_THAT_ARE_REFUSALS:
            self.rejected[effect.reason] += effect.count
        else:
            self.dropped[effect.reason] += effect.count

    def publish(self, compute_s: float) -> None:
        """An update was made; it took so long from the weights it was computed on to now."""
        self.published += 1
        self._compute_s += compute_s
        steps = sum(self.steps)
        since, self._steps_published = steps - self._steps_published, steps
        before = self.update_steps
        self.update_steps = since if math.isnan(before) else before + 0.1 * (since - before)

    def note(self, learned: Learned) -> None:
        """The latest figures; what is None stays what it was."""
        for name in Learned.NUMBERS:
            if (value := getattr(learned, name)) is not None:
                setattr(self, name, float(value))
        if learned.loss is not None:
            self.learning.note_loss(self.loss, sum(self.steps))
        if learned.accuracy_of is not None:
            self.accuracy_of = tuple(float(each) for each in learned.accuracy_of)

    def step(self, seconds: float) -> None:
        """A local step; it took so long, from the end of the one before."""
        self.steps[bisect_left(STEP_BOUNDS_S, seconds)] += 1
        self.steps_s += seconds

    def see_samples(self, samples: int) -> None:
        """So many were seen in a step; nobody has told how many they were."""
        if not self.samples_told:
            self.samples += samples
            self.samples_seen += samples

    def tell_samples(self, samples: int) -> None:
        """The training script counts them itself: what was seen does not count."""
        if samples:
            self.samples += samples - self.samples_seen
            self.samples_seen, self.samples_told = 0, True

    def send(self, to: str, message: Push | Snapshot | Share) -> None:
        """A message with a tensor was given to a link."""
        to = _few(self.sent_to, to)
        for codec, nbytes in bytes_by_codec(message):
            self.sent_by_codec[codec] += nbytes
            self.sent_to[to] = self.sent_to.get(to, 0) + nbytes

    def neighbours(self) -> tuple[Neighbour, ...]:
        """What passed between me and each of the others."""
        return tuple(
            Neighbour(
                name,
                self.sent_to.get(name, 0),
                self.applied_of.get(name, 0),
                self.staleness_of.get(name, 0),
            )
            for name in sorted({*self.sent_to, *self.applied_of})
        )

    def all_staleness(self) -> Summary:
        """Of every update applied here, own included: a copy."""
        both = Summary()
        both.merge(self.staleness)
        both.merge(self.catching_up)
        return both

    @property
    def computed_s(self) -> float:
        """Of all updates together."""
        return self._compute_s

    @property
    def compute_s(self) -> float:
        """Mean time from the start of an update's batch to the update."""
        return self._compute_s / self.published if self.published else 0.0

    @property
    def steps_made(self) -> int:
        """Local steps, those of an earlier life included."""
        return self._steps_before + sum(self.steps)

    def go_on(self, samples: int, steps: int = 0) -> None:
        """An earlier life had trained on so many samples, in so many steps."""
        self._samples_before, self._steps_before = samples, steps
        self.samples += samples

    def training_s(self, now: float) -> float:
        if self.began is None:
            return 0.0
        return max(0.0, (now if self.ended is None else self.ended) - self.began)

    def progress(
        self,
        name: str,
        epoch: int,
        now: float,
        *,
        traffic: tuple[int, int],
        last: int = 0,
        done: bool = False,
        settled: bool = False,
    ) -> Progress:
        """All of it at this instant, for the others and for reports."""
        self._version += 1
        training_s = self.training_s(now)
        return Progress(
            name=name,
            epoch=epoch,
            version=self._version,
            samples=self.samples,
            samples_per_s=(self.samples - self._samples_before) / max(training_s, 1e-9)
            if training_s > 0
            else 0.0,
            step_s=self.compute_s,
            loss=self.loss,
            test_loss=self.test_loss,
            accuracy=self.accuracy,
            validation_loss=self.validation_loss,
            validation_accuracy=self.validation_accuracy,
            published=self.published,
            applied=self.applied,
            duplicates=self.duplicates,
            rejected=sorted_counts(self.rejected.items()),
            staleness=Staleness(
                self.staleness.count,
                self.staleness.mean,
                self.staleness.percentile(50),
                self.staleness.percentile(99),
                self.staleness.largest,
            ),
            bytes_sent=traffic[0],
            bytes_received=traffic[1],
            wait_s=self.wait_s,
            last=last,
            done=done,
            settled=settled,
            bytes_by_codec=sorted_counts(self.sent_by_codec.items()),
            catching_up=self.catching_up.count,
            warnings=self.learning.warnings,
            steps=self.steps_made,
            stopped=self.stopped,
            first_batches=self.first_batches,
        )


def _few(counts: dict[str, int], name: str) -> str:
    return name if name in counts or len(counts) < NAMES_MAX else OTHER


def sorted_counts(items: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(items))


def bytes_by_codec(message: Push | Snapshot | Share) -> list[tuple[str, int]]:
    """What the tensor of a message takes on the wire."""
    if isinstance(message, Push) and message.parts:
        # A span is as plain as the whole.
        return [("fp32" if p.codec == span.CODEC else p.codec, p.nbytes) for p in message.parts]
    match message:
        case Push():
            tensor = message.payload
        case Snapshot():
            tensor = message.weights
        case Share():
            tensor = message.model
    plain = "fp32" if tensor.dtype == torch.float32 else "fp64"
    return [(plain, tensor.numel() * tensor.element_size())]

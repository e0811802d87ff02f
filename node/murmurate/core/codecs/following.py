"""In what form updates leave: in one codec throughout, or in the one that the links take.

Links say it by how many local steps pass until they have room for the next update. Where they are
wide, numbers go as they are. Where an update would be of many steps, fewer bytes cost learning less
than the wait does: narrow links, one model takes 50 steps to send, LeNet-5: 4 peers end at 62 % as
fp32, at 80.6 % as top-k, and one alone at 75 % (docs/convergence.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from murmurate.core.codecs import topk
from murmurate.core.codecs.choice import Choice
from murmurate.core.codecs.codec import Encoder

FORMS = (
    (Choice(), 4.0),
    (Choice("int8"), 1.0),
    (Choice("topk", 0.16), 0.33),
    (Choice("topk", 0.04), 0.083),
    (Choice("topk", 0.01), 0.021),
)
"""And the bytes that a number takes in them: each has a quarter or a third of the one before."""
CAUTIOUS = 3
"""With this one the first update leaves that anybody may get."""
STEPS_SHORT = 4
"""In more bytes an update goes when by its bytes its links would take it in so many steps."""
STEPS_LONG = 8
"""One that takes longer goes in fewer: an update of many steps costs learning more than its few
bytes do."""
TRIES_FIRST, TRIES_LAST = 16, 4096
"""Updates after which more bytes are tried all the same, for the time may not have been that of
bytes; and after which again, when they did take too long, twice as many each time."""
SMALL_BYTES = 64 << 10
"""A model of so many bytes goes as it is: an update of it passes between two steps."""


class Coding(Protocol):
    """What a publisher asks of the form of its updates."""

    @property
    def encoder(self) -> Encoder | None:
        """For the next update; None: numbers as they are."""

    def stepped(self, members: int, has_room: Callable[[], bool]) -> None:
        """A local step was made, with so many members, this node included. `has_room`: whether
        links would take one more update such as the last."""

    def sent(self) -> None:
        """An update was handed over."""


class OneCodec:
    """Every update in the same form."""

    def __init__(self, encoder: Encoder | None = None) -> None:
        self.encoder = encoder

    def stepped(self, members: int, has_room: Callable[[], bool]) -> None:
        pass

    def sent(self) -> None:
        pass


class CodecOfLink:
    """As many bytes as the links take in a few steps, and no fewer."""

    def __init__(self, size: int) -> None:
        """`size`: of the model, in numbers of 4 bytes."""
        forms = FORMS if size <= topk.SIZE_MAX else FORMS[:2]
        self._bytes = [number for _, number in forms]
        self._forms = [None if form.plain else Encoder(form, size) for form, _ in forms]
        self._cautious = self._at = min(CAUTIOUS, len(forms) - 1)
        self._alone = True
        self._steps: int | None = None
        """Since the last update was handed over; None: its links have had room since."""
        self._tried = False
        """Whether the last update was the first in more bytes than before."""
        self._tries_in = self._tries_after = TRIES_FIRST

    @property
    def encoder(self) -> Encoder | None:
        return None if self._alone else self._forms[self._at]

    def stepped(self, members: int, has_room: Callable[[], bool]) -> None:
        """Who is alone loses nothing to a codec. When others come, what their links take is not
        known: the first update must not be one that blocks them for long."""
        if self._alone and members > 1:
            self._at, self._tried = self._cautious, False
        self._alone = members < 2
        if self._steps is None:
            return
        self._steps += 1
        if has_room():
            self._took(self._steps)
            self._steps = None

    def sent(self) -> None:
        self._tries_in = max(0, self._tries_in - 1)
        self._steps = None if self._alone else 0

    def _took(self, steps: int) -> None:
        """The last update's links had room again after so many steps."""
        if steps > STEPS_LONG:
            if self._tried:
                self._tries_after = min(2 * self._tries_after, TRIES_LAST)
            self._tried, self._tries_in = False, self._tries_after
            self._narrow(steps)
            return
        if self._tried:
            self._tried, self._tries_after = False, TRIES_FIRST
        if not self._at:
            return
        fits = steps * self._bytes[self._at - 1] <= STEPS_SHORT * self._bytes[self._at]
        if fits or not self._tries_in:
            self._at -= 1
            self._tried, self._tries_in = True, self._tries_after

    def _narrow(self, steps: int) -> None:
        """Fewer bytes: as many fewer as make the wait short, if all of it is bytes."""
        taken = self._bytes[self._at]
        while self._at + 1 < len(self._forms):
            self._at += 1
            if steps * self._bytes[self._at] / taken <= STEPS_LONG:
                return

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
"""In more bytes an update goes when, by its bytes, it would be with the others in so many steps."""
STEPS_LONG = 8
"""One whose bytes take longer goes in fewer: an update of many steps costs learning more than the
numbers do that it leaves for the next."""
TRIES_FIRST, TRIES_LAST = 16, 4096
"""Updates after which more bytes are tried all the same, for not all of the time need be that of
bytes; and after which again, when they did take too long, twice as many each time."""
SMALL_BYTES = 64 << 10
"""A model of so many bytes goes as it is: an update of it passes between two steps."""


class Coding(Protocol):
    """What a publisher asks of the form of its updates."""

    @property
    def encoder(self) -> Encoder | None:
        """For the next update; None: numbers as they are."""

    def stepped(self, members: int, under_way: Callable[[int], bool]) -> None:
        """A local step was made, with so many members, this node included. `under_way`: whether an
        update of mine, by its number, is still to get to most of those it is sent to."""

    def sent(self, number: int) -> None:
        """An update was handed over."""


class OneCodec:
    """Every update in the same form."""

    def __init__(self, encoder: Encoder | None = None) -> None:
        self.encoder = encoder

    def stepped(self, members: int, under_way: Callable[[int], bool]) -> None:
        pass

    def sent(self, number: int) -> None:
        pass


class CodecOfLink:
    """As many bytes as are with the others in a few steps, and no fewer.

    What an update takes is its bytes over the width of a link, and a time that is the same for all:
    a long way, a peer that folds in now and then. What the same links take for fewer bytes is as
    near to that time as is known.
    """

    def __init__(self, size: int, *, cautious: bool = True) -> None:
        """`size`: of the model, in numbers of 4 bytes. Not `cautious`: its first update leaves as
        it is, because all of it at once, to be encoded, is memory that the model has no room for
        unless links are narrow."""
        forms = FORMS if size <= topk.SIZE_MAX else FORMS[:2]
        self._bytes = [number for _, number in forms]
        self._forms = [None if form.plain else Encoder(form, size) for form, _ in forms]
        self._first = self._at = min(CAUTIOUS, len(forms) - 1) if cautious else 0
        self._alone = True
        self._watched: tuple[int, int] | None = None
        """The number of an update that is watched on its way, and the form it is in."""
        self._steps = 0
        """Since then."""
        self._took: dict[int, int] = {}
        """Steps to the others, of each form when it was last watched."""
        self._tries_in = self._tries_after = TRIES_FIRST

    @property
    def encoder(self) -> Encoder | None:
        return None if self._alone else self._forms[self._at]

    def stepped(self, members: int, under_way: Callable[[int], bool]) -> None:
        """Who is alone loses nothing to a codec. When others come, what their links take is not
        known: the first update must not be one that blocks them for long."""
        if self._alone and members > 1:
            self._at, self._watched = self._first, None
            self._took.clear()
        self._alone = members < 2
        if self._watched is None:
            return
        self._steps += 1
        number, form = self._watched
        if not under_way(number):
            self._watched = None
            self._arrived(form, self._steps)

    def sent(self, number: int) -> None:
        self._tries_in = max(0, self._tries_in - 1)
        if self._watched is None and not self._alone:
            self._watched, self._steps = (number, self._at), 0

    def _arrived(self, form: int, steps: int) -> None:
        """An update in this form was with the others after so many steps."""
        self._took[form] = steps
        if form != self._at:
            return
        narrower = [took for other, took in self._took.items() if other > form]
        of_bytes = max(0, steps - min(narrower, default=0))
        if of_bytes > STEPS_LONG and form + 1 < len(self._forms):
            self._narrow(of_bytes)
        elif form:
            more = self._bytes[form - 1] / self._bytes[form]
            if of_bytes * more <= STEPS_SHORT or not self._tries_in:
                self._at -= 1
                self._tries_in = self._tries_after

    def _narrow(self, of_bytes: int) -> None:
        """Fewer bytes: as many fewer as make the wait short."""
        taken = self._bytes[self._at]
        if self._at + 1 in self._took:  # it came from there, and goes back
            self._tries_after = min(2 * self._tries_after, TRIES_LAST)
        self._tries_in = self._tries_after
        while self._at + 1 < len(self._forms):
            self._at += 1
            if of_bytes * self._bytes[self._at] / taken <= STEPS_LONG:
                return

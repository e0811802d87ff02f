"""Pieces of something large: how large the next one may be, and that they come in order."""

from __future__ import annotations

from murmurate.errors import RemoteProtocolError

PIECE_BYTES_MIN = 64 << 10
PIECE_BYTES_FIRST = 128 << 10
"""A stream begins with this: nobody knows yet whether it takes a millisecond or seconds."""
PIECE_BYTES_MAX = 1 << 20
SLOW_S, FAST_S = 1.0, 0.25
"""A piece that takes longer than the one makes the next one half as large; one that takes less than
the other, and was fuller than half, twice as large."""


class PieceSize:
    """The sender's side: pieces shrink when the way is slow, so that what is small never waits
    long behind one, and none takes longer to leave than a stream may stand still."""

    __slots__ = ("nbytes",)

    def __init__(self, nbytes: int = PIECE_BYTES_FIRST) -> None:
        self.nbytes = nbytes

    def took(self, seconds: float, nbytes: int) -> None:
        """How long a piece of so many bytes took to leave; 0: it was none."""
        if seconds > SLOW_S and nbytes:
            self.nbytes = max(PIECE_BYTES_MIN, self.nbytes // 2)
        elif seconds < FAST_S and nbytes > self.nbytes // 2:
            self.nbytes = min(PIECE_BYTES_MAX, self.nbytes * 2)


class PieceOrder:
    """The receiver's side: bytes come in order, none twice, none left out, none too many."""

    __slots__ = ("_total", "_what", "filled")

    def __init__(self, what: str, total: int) -> None:
        """`what` comes, for errors, of so many bytes in all."""
        self._what = what
        self._total = total
        self.filled = 0

    @property
    def done(self) -> bool:
        return self.filled == self._total

    def take(self, offset: int, nbytes: int) -> bool:
        """Whether these were the last bytes. RemoteProtocolError: they are not the next ones."""
        if offset != self.filled:
            raise RemoteProtocolError(
                f"{self._what}.offset", f"{offset}, expected {self.filled} of {self._total}"
            )
        if not nbytes or offset + nbytes > self._total:
            raise RemoteProtocolError(
                f"{self._what}.raw", f"{offset} + {nbytes} bytes, there are {self._total}"
            )
        self.filled += nbytes
        return self.done

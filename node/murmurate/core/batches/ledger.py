"""A peer's book of batches from a generator: for which update each is claimed, and whether that is
confirmed (the other side is `dealer`).

Claims are made ahead, in groups: the batches of one group go into one update, the next group into
the next one. So an answer is there before the group is trained, however far the generator is, and
nobody waits. Rules:

1. An update may leave when all batches in it are confirmed for it, and no other is claimed for it:
   whoever looks at that update later must be right about what is in it.
2. When a group could not be published at its end, the next one goes into the same update: all that
   follow are claimed again, together, and that is confirmed by the time its last step is done.
"""

from __future__ import annotations

from collections import deque


class Ledger:
    """Numbers of batches: `ready` to be trained on, `open` in steps that are not published."""

    def __init__(self, seq: int = 1) -> None:
        self.seq = seq
        """The update that steps go into."""
        self.ready: deque[int] = deque()
        self.open: list[int] = []
        self.claims: list[tuple[int, int]] = []
        """To be sent: batch and update; whoever takes them calls `sent`."""
        self.back: list[int] = []
        self.spent: list[int] = []
        self.forgone: list[int] = []
        """Were taken from me and are in no update of mine."""
        self.spoiled = False
        """An open batch is not mine any more: the steps must be taken back."""
        self._said: dict[int, int] = {}
        self._sure: dict[int, int] = {}
        self._unanswered: deque[tuple[int, int]] = deque()
        self._void: set[int] = set()
        """Taken from me, with a claim on its way."""

    def __contains__(self, number: int) -> bool:
        return number in self._said

    def arrive(self, number: int, group: int) -> None:
        """A batch was dealt: it joins the last group if that has fewer than `group` and has not
        been begun, else it begins one."""
        if self.ready:
            seq = self._said[self.ready[-1]]
            size = sum(self._said[each] == seq for each in self.ready)
            begun = bool(self.open) and seq == self.seq
            if begun or size >= group:
                seq += 1
        else:
            seq = self.seq + bool(self.open)
        self.ready.append(number)
        self._void.discard(number)
        self._claim(number, seq)

    def take(self, seq: int) -> int | None:
        """The next batch to train on, for the update `seq`, which is my next one."""
        if not self.ready:
            return None
        self.seq = seq
        if self._said[self.ready[0]] != seq:
            self._shift(seq)
        number = self.ready.popleft()
        self.open.append(number)
        return number

    def _shift(self, seq: int) -> None:
        """Let the next group be `seq`, and the others follow."""
        before = self._said[self.ready[0]]
        for number in self.ready:
            if self._said[number] != before:
                before = self._said[number]
                seq += 1
            if before != seq:
                self._claim(number, seq)

    def may_publish(self) -> bool:
        """Whether what is known of my next update is what is in it."""
        if self.spoiled or (self.ready and self._said[self.ready[0]] <= self.seq):
            return False
        return all(self._sure.get(number) == self.seq for number in self.open)

    def published(self) -> list[int]:
        """The steps are in update `seq`; returns their batches."""
        numbers, self.open = self.open, []
        self._forget(numbers)
        self.seq += 1
        return numbers

    def drop(self, *, spent: bool = False) -> None:
        """The steps are in no update, and will not be; `spent`: nobody else needs to try."""
        (self.spent if spent else self.back).extend(self.open)
        self._forget(self.open)
        self.open = []
        self.spoiled = False
        for number in self.ready:
            if self._said[number] == self.seq:  # that update holds less than was said
                self._claim(number, self.seq)

    def give_up_ready(self) -> None:
        """No more steps: the rest is for others, which changes what my next update holds."""
        self.back += self.ready
        self._forget(self.ready)
        self.ready.clear()
        for number in self.open:
            self._claim(number, self.seq)

    # -- answers ---------------------------------------------------------------------------------

    def sent(self) -> tuple[list[tuple[int, int]], list[int], list[int], list[int]]:
        """What there is to say now, in one message: claims, spent, given back, forgone. The claims
        are heard last: one that is both is claimed anew."""
        out = self.claims, self.spent, self.back, self.forgone
        self._unanswered.extend(self.claims)
        self.claims, self.spent, self.back, self.forgone = [], [], [], []
        return out

    def confirmed(self, number: int) -> None:
        seq = self._answered(number)
        if number in self._void:
            self._void.discard(number)
            self.back.append(number)
        elif seq is not None and number in self._said and not self._asks_for(number):
            self._sure[number] = seq

    def denied(self, number: int) -> None:
        self._answered(number)
        self._void.discard(number)
        self._lose(number)

    def taken(self, number: int) -> None:
        """It was taken, unasked. A claim that is on its way may get it back for me: then I return
        it."""
        if number in self._said and any(each == number for each, _ in self._unanswered):
            self._void.add(number)
        self._lose(number)

    def _lose(self, number: int) -> None:
        if number not in self._said:
            return
        if number in self.open:
            self.open.remove(number)
            self.spoiled = True
        else:
            self.ready.remove(number)
        self._forget([number])
        self.forgone.append(number)

    def restart(self, seq: int | None = None) -> list[int]:
        """A new stream: what was dealt and is not begun is gone, what was said is void. Returns the
        open batches, which are claimed anew for `seq` (given for a new life: then none is open)."""
        if seq is not None:
            self.seq, self.open, self.spoiled = seq, [], False
        self.ready.clear()
        self.claims, self.spent, self.back, self.forgone = [], [], [], []
        self._said = dict.fromkeys(self.open, self.seq)
        self._sure.clear()
        self._void.clear()
        self._unanswered = deque((number, self.seq) for number in self.open)
        return list(self.open)

    # -- inside ----------------------------------------------------------------------------------

    def _claim(self, number: int, seq: int) -> None:
        self._said[number] = seq
        self._sure.pop(number, None)
        self.claims.append((number, seq))

    def _asks_for(self, number: int) -> bool:
        """Whether a newer claim on this batch has no answer yet: only the last word counts, and all
        that was said before it is heard before it."""
        claims = (*self._unanswered, *self.claims)
        return any(each == number for each, _ in claims)

    def _answered(self, number: int) -> int | None:
        """The update of the oldest claim on this batch that has no answer."""
        for place, (each, seq) in enumerate(self._unanswered):
            if each == number:
                del self._unanswered[place]
                return seq
        return None

    def _forget(self, numbers: list[int] | deque[int]) -> None:
        gone = frozenset(numbers)
        for number in gone:
            del self._said[number]
            self._sure.pop(number, None)
        self.claims = [claim for claim in self.claims if claim[0] not in gone]

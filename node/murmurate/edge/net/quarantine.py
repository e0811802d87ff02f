"""Who sent too much nonsense, and for how long it is not listened to."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from murmurate.edge.net.transport import Limits

RECORDS_MAX = 1024


@dataclass(slots=True)
class _Record:
    strikes: deque[float] = field(default_factory=deque)
    until: float = 0.0
    sentence_s: float = 0.0


class Quarantine:
    """Three strikes in a minute: not heard for a minute, each further time twice as long.

    `who` names the sender together with where it called from: without certificates a name alone
    would let anyone silence an honest peer.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._records: dict[str, _Record] = {}

    def strike(self, who: str, now: float) -> bool:
        """Note a bad message. True: that was one too many."""
        record = self._records.pop(who, None) or _Record()
        self._records[who] = record  # newest last
        if len(self._records) > RECORDS_MAX:
            del self._records[next(iter(self._records))]
        limits = self._limits
        if record.sentence_s and now > record.until + limits.quarantine_max_s:
            record.sentence_s = 0.0
        record.strikes.append(now)
        while record.strikes[0] < now - limits.strike_s:
            record.strikes.popleft()
        if len(record.strikes) < limits.strikes:
            return False
        record.strikes.clear()
        record.sentence_s = min(
            max(limits.quarantine_min_s, 2 * record.sentence_s), limits.quarantine_max_s
        )
        record.until = now + record.sentence_s
        return True

    def left_s(self, who: str, now: float) -> float:
        """Seconds until `who` is heard again; 0: it is heard."""
        record = self._records.get(who)
        return max(0.0, record.until - now) if record is not None else 0.0

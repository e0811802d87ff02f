"""Which batches were trained on, in little memory however many there are."""

from __future__ import annotations

PAGE_BITS, PAGES_MAX = 1 << 16, 4096
"""Numbers are noted by the page; of too many pages the one with the lowest numbers goes."""


class NumbersSeen:
    """A set of numbers, a bit for each: those that were trained on."""

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}

    def add(self, number: int) -> None:
        page, bit = divmod(number, PAGE_BITS)
        if page not in self._pages:
            self._pages[page] = bytearray(PAGE_BITS // 8)
            if len(self._pages) > PAGES_MAX:
                del self._pages[min(self._pages)]
        self._pages[page][bit >> 3] |= 1 << (bit & 7)

    def __contains__(self, number: int) -> bool:
        page, bit = divmod(number, PAGE_BITS)
        return page in self._pages and bool(self._pages[page][bit >> 3] >> (bit & 7) & 1)

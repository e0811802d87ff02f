"""Which codec a node sends with: names and figures, without torch."""

from __future__ import annotations

import re
from typing import NamedTuple

from murmurate.errors import ConfigError

AUTO = "auto"
"""The form that the links take (`core.codecs.following`)."""
CODECS = ("fp32", "bf16", "int8", "topk")
EXPECTED = "auto, fp32, bf16, int8, topk or topk(PART), such as topk(0.01)"
TOPK_PART, TOPK_PART_MAX = 0.04, 0.25
"""Of the elements, in one update: a 48th of the bytes, and safely within a point of accuracy where
0.01 is not (docs/codecs.md). Beyond a quarter, int8 of all of them is not much more."""


class Choice(NamedTuple):
    """A codec and, of top-k, the part of the elements in one update."""

    name: str = "fp32"
    part: float = TOPK_PART

    @property
    def plain(self) -> bool:
        """Whether numbers are sent as they are, or may be."""
        return self.name in ("fp32", AUTO)

    @property
    def follows(self) -> bool:
        """Whether the links decide."""
        return self.name == AUTO


def parse_codec(text: str) -> Choice:
    """`auto`, `fp32`, `bf16`, `int8`, `topk` or `topk(PART)`; ConfigError says so."""
    name = text.strip().lower()
    if match := re.fullmatch(r"topk\s*\(\s*(\d*\.?\d+)\s*\)", name):
        part = float(match[1])
        if not 0 < part <= TOPK_PART_MAX:
            raise ConfigError(f"codec {text!r}: a part above 0, up to {TOPK_PART_MAX}")
        return Choice("topk", part)
    if name not in (AUTO, *CODECS):
        raise ConfigError(f"codec {text!r}: expected {EXPECTED}")
    return Choice(name)

"""In what form a node's updates leave: what is asked for, as far as model and rule allow it."""

from __future__ import annotations

import torch

from murmurate.core.codecs.choice import Choice
from murmurate.core.codecs.codec import Encoder
from murmurate.core.codecs.following import SMALL_BYTES, CodecOfLink, Coding, OneCodec
from murmurate.core.layout import Layout
from murmurate.core.publishing.rule import PublishingRule
from murmurate.errors import ConfigError


def coding_for(
    choice: Choice, layout: Layout, rule: PublishingRule, *, cautious: bool = True
) -> Coding:
    """In what form the updates of such a model leave. Links decide where a rule makes something of
    an update's steps when it leaves, and where what encoding leaves out can be kept."""
    may = layout.dtype == torch.float32 and not layout.narrow
    if choice.follows and may and rule.fresh and layout.nbytes > SMALL_BYTES:
        return CodecOfLink(layout.size, cautious=cautious)
    return OneCodec(encoder_for(choice, layout))


def encoder_for(choice: Choice, layout: Layout) -> Encoder | None:
    """What encodes the updates of such a model; None: they go as they are."""
    if choice.plain:
        return None
    if layout.narrow:
        raise ConfigError(
            f"codec {choice.name!r}: some parameters have 16 bits, too few to keep what encoding"
            " leaves out; use codec 'fp32': numbers as they are"
        )
    return Encoder(choice, layout.size, layout.dtype)

"""The forms in which simulated updates travel: plain numbers, or the codecs of nodes."""

from __future__ import annotations

import torch

from murmurate.core.codecs import span
from murmurate.core.codecs.choice import Choice
from murmurate.core.codecs.codec import Encoder, part_in
from murmurate.core.message import Delta, parts_of


def encoded(form: str, delta: torch.Tensor, number: int) -> Delta:
    """An update in that form. What encoding leaves out is lost: nobody trains here."""
    if not form:
        return delta
    if form == "span":
        places = span.spans(delta.numel())
        place = places[number % len(places)]
        return part_in(place, delta.numel(), lambda numbers: numbers.copy_(delta[place]))
    return Encoder(Choice(form), delta.numel()).encode(delta)


def plain(update: Delta) -> tuple[float, ...]:
    """What everyone adds."""
    if isinstance(update, torch.Tensor):
        return tuple(update.tolist())
    flat = torch.zeros(parts_of(update)[0].size)
    for part in parts_of(update):
        part.add_to(flat)
    return tuple(flat.tolist())

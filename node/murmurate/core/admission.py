"""What a peer refuses before anything changes: a clear error that names the field.

Every check is a function of the message and of what I made myself, never of what I happened to
receive before, so that all honest peers refuse the same updates and their sets stay equal.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from murmurate.core.clock import Clock, ClockLimits, Key
from murmurate.core.intervals import SEQ_MAX
from murmurate.core.message import Part, Push
from murmurate.core.values.limits import name_problem
from murmurate.errors import RemoteProtocolError

NORM_MAX = 1e15
SEQ_JUMP_MAX = 1_000_000
NAME_BYTES_MAX = ClockLimits().name_bytes_max
SEQ_PER_S_MAX = 1000.0
ROW, ROWS = 8192, 16
HEARD_MAX = 16384
"""Epochs of which the last claim is remembered; the oldest is forgotten, and believed again."""


def square(numbers: np.ndarray) -> float:
    """The square of the norm of a flat array.

    By BLAS, in rows so short that it wakes no other threads: these would compete with training, and
    a thread that is not torch's own has a team of them for itself (`Tensor.dot` in the background
    took up to 8 ms for 0.24 MB that way; this takes 0.04).
    """
    few = len(numbers) <= ROWS * ROW
    end = 0 if few else len(numbers) // ROW * ROW
    total = 0.0
    with np.errstate(all="ignore"):  # what is too large comes out as infinite
        if not few:
            rows = numbers[:end].reshape(-1, ROW)
            total = float(np.vecdot(rows, rows).sum(dtype=np.float64))
        for at in range(end, len(numbers), ROW):
            row = numbers[at : at + ROW]
            total += float(row.dot(row))
    return total


def payload_problem(
    payload: torch.Tensor | tuple[Part, ...], weights: torch.Tensor, norm: float | None = None
) -> str:
    """Why a payload cannot be added to these weights; empty: it can. `norm`: if it is known."""
    if not isinstance(payload, torch.Tensor):
        return _parts_problem(payload, weights)
    if payload.shape != weights.shape:
        return f"{payload.numel()} elements, the model has {weights.numel()}"
    if payload.dtype != weights.dtype:
        return f"{payload.dtype}, the model has {weights.dtype}"
    if payload.is_floating_point():
        # One pass finds NaN, Inf and overflow. NORM_MAX squared fits float32.
        norm = math.sqrt(square(payload.numpy())) if norm is None else norm
        if not norm <= NORM_MAX:
            return f"its norm is {norm}, at most {NORM_MAX}"
    return ""


def _parts_problem(parts: tuple[Part, ...], weights: torch.Tensor) -> str:
    """Told without decoding them."""
    if weights.dtype != torch.float32:
        return f"encoded, which is for float32, and the model has {weights.dtype}"
    if parts[0].size != weights.numel():
        return f"{parts[0].size} elements, the model has {weights.numel()}"
    norm = math.fsum(part.norm() for part in parts)
    if not norm <= NORM_MAX:
        return f"its norm is up to {norm}, at most {NORM_MAX}"
    return ""


class Gate:
    """Checks of one peer, which knows its own name, life and last update."""

    def __init__(self, name: str, epoch: int) -> None:
        self.name = name
        self.epoch = epoch
        self._heard: dict[Key, tuple[int, float]] = {}

    def check_push(self, push: Push, seq: int, weights: torch.Tensor) -> None:
        if problem := payload_problem(push.parts or push.payload, weights):
            raise RemoteProtocolError("push.payload", problem)
        generation = push.stamps[0].context.generation
        for stamp in push.stamps:
            dot, context = stamp.dot, stamp.context
            if dot.seq < 1 or dot.epoch < 1:
                raise RemoteProtocolError("push.dot", f"{dot}: numbers start at 1")
            if dot.seq > SEQ_MAX or dot.epoch > SEQ_MAX:
                raise RemoteProtocolError("push.dot", f"{dot}: numbers end at {SEQ_MAX}")
            if problem := name_problem(dot.origin, NAME_BYTES_MAX):
                raise RemoteProtocolError("push.dot", problem)
            if dot.origin == self.name and (
                dot.epoch > self.epoch or (dot.epoch == self.epoch and dot.seq > seq)
            ):
                raise RemoteProtocolError("push.dot", f"{dot} is mine, but I never made it")
            if dot in context:
                raise RemoteProtocolError("push.context", f"{dot} is in its own context")
            if context.generation != generation:
                raise RemoteProtocolError("push.context", "contexts of several generations")
            self.check_mine("push.context", context, seq)

    def check_mine(self, what: str, clock: Clock, seq: int) -> None:
        """A clock cannot hold updates of mine that I never made."""
        if clock.epoch(self.name) > self.epoch:
            raise RemoteProtocolError(
                what,
                f"{self.name} in epoch {clock.epoch(self.name)}: that is my name, but I am in"
                f" {self.epoch}",
            )
        last = clock.last(self.name, self.epoch)
        if last > seq:
            raise RemoteProtocolError(
                what,
                f"{self.name}/{self.epoch}/{last} is mine, but I made only {seq}:"
                " is my name used elsewhere?",
            )

    def check_clock(self, what: str, clock: Clock, seq: int, now: float) -> None:
        """Refuse what no honest peer can claim. The first sight of an epoch is believed."""
        self.check_mine(what, clock, seq)
        if clock.apart:
            raise RemoteProtocolError(what, "a peer's own clock is never apart from its baseline")
        claims = [(key, clock.runs(key)[-1]) for key in clock.keys()]
        for key, last in claims:
            if key in self._heard:
                before, at = self._heard[key]
                if last - before > max(SEQ_JUMP_MAX, SEQ_PER_S_MAX * (now - at)):
                    raise RemoteProtocolError(
                        what, f"{key[0]}/{key[1]} jumps from {before} to {last} in {now - at:.0f} s"
                    )
        for key, last in claims:
            if key not in self._heard or last > self._heard[key][0]:
                self._heard[key] = (last, now)
        while len(self._heard) > HEARD_MAX:
            del self._heard[next(iter(self._heard))]

    def forget(self, keys: list[Key]) -> None:
        for key in keys:
            self._heard.pop(key, None)

"""The coordinator's folder: checkpoints of its state, and the model as anyone can load it.

Written as a node writes its own (`io.folder`, `io.checkpoint`): whole or not at all, three are
kept, a torn one is passed over with a line. What a crash costs is in docs/ist.md.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from murmurate.errors import CheckpointError
from murmurate.io import checkpoint as files
from murmurate.io.checkpoint import Damaged
from murmurate.io.folder import Folder, checkpoint_name
from murmurate_coordinator.saved import Saved

log = logging.getLogger("murmurate")

FORMAT = 1
KIND = "coordinator"
MODEL = "model.safetensors"
KEPT = 3
SHARE = 0.05
"""Of the time that checkpoints may take."""
RETRY_S = 5.0
WARN_S = 60.0

Tensors = Mapping[str, torch.Tensor]


class Keeper:
    """`put` blocks and belongs into a thread; the rest is quick."""

    def __init__(
        self,
        path: str,
        *,
        every_s: float,
        run: str,
        rule: str,
        structure: str,
        tied: Mapping[str, str],
    ) -> None:
        """Take the folder and look what is there; CheckpointError: it is not for this run."""
        self.every_s = every_s
        self.failures = 0
        self.restored: Saved | None = None
        self._is = {"kind": KIND, "run": run, "rule": rule, "structure": structure}
        self._tied = tied
        self._due_at = self._least_at = -math.inf
        self._saved_at = math.inf
        self._warned_at = -math.inf
        self.folder = Folder(path)
        try:
            numbers = self.folder.numbers()
            self._number = max(numbers, default=0) + 1
            self.restored = self._newest(numbers)
        except OSError as error:
            self.folder.close()
            raise CheckpointError(f"{path}: {error.strerror}") from None
        except BaseException:
            self.folder.close()
            raise

    def _newest(self, numbers: list[int]) -> Saved | None:
        for number in reversed(numbers):
            path = self.folder.checkpoint(number)
            try:
                return files.read_tensors(path, partial(self._mine, path))
            except Damaged as error:
                log.warning("%s: %s; it is passed over", self.folder.path, error)
        if numbers:  # not to be found out from an untrained model
            raise CheckpointError(
                f"{self.folder.path}: none of its checkpoints is whole; give the coordinator"
                " another folder to start without them"
            )
        return None

    def _mine(self, path: Path, about: Any, tensors: dict[str, torch.Tensor]) -> Saved:
        if about.get("kind") != KIND:
            raise CheckpointError(f"{path}: a node's, not a coordinator's; give it its own folder")
        if about["format"] > FORMAT:
            raise CheckpointError(
                f"{path}: written by a later murmurate (format {about['format']}, this one reads"
                f" {FORMAT})"
            )
        for what in ("run", "rule"):
            if about[what] != self._is[what]:
                raise CheckpointError(
                    f"{path}: of {what} {about[what]!r}, this coordinator has {self._is[what]!r}"
                )
        if about["structure"] != self._is["structure"]:
            raise CheckpointError(f"{path}: of another model")
        return Saved(tensors, about)

    # -- writing ---------------------------------------------------------------------------------

    def due(self, now: float) -> bool:
        return now >= self._due_at

    def soon(self) -> None:
        """Something was dealt anew: better not to forget it."""
        soon = max(time.monotonic() + self.every_s / 10, self._least_at)
        self._due_at = min(self._due_at, soon)

    @property
    def age_s(self) -> float:
        """Since the last good one of this process; infinite: there was none."""
        return time.monotonic() - self._saved_at if self._saved_at < math.inf else math.inf

    def put(self, saved: Saved, model: Tensors) -> bool:
        """Durable when this returns True; a full disk costs a line."""
        began = time.monotonic()
        about = {"format": FORMAT, **saved.about, **self._is}
        try:
            self.folder.put(
                checkpoint_name(self._number),
                lambda file: files.write_tensors(file, saved.tensors, about, self._tied),
            )
            self.folder.put(MODEL, lambda file: self.write_model(file, model))
        except OSError as error:
            self.failures += 1
            self._due_at = time.monotonic() + min(RETRY_S, self.every_s)
            if began >= self._warned_at + WARN_S:
                self._warned_at = began
                log.warning(
                    "%s: cannot be written (%s); training goes on, without checkpoints",
                    self.folder.path,
                    error.strerror or error,
                )
            return False
        finally:
            self._number += 1  # also after a failure: it may be there all the same
        self._saved_at = now = time.monotonic()
        self._least_at = began + (now - began) / SHARE
        self._due_at = max(began + self.every_s, self._least_at)
        for number in self.folder.numbers()[:-KEPT]:
            self.folder.remove(number)
        return True

    def write_model(self, file: Any, model: Tensors) -> None:
        write_model(file, model, self._tied, self._is["run"])

    def close(self) -> None:
        self.folder.close()


def write_model(file: Any, model: Tensors, tied: Mapping[str, str], run: str) -> None:
    """A file that loads into the plain model; tied tensors are there once (`load_model`)."""
    files.write_tensors(file, model, {"format": FORMAT, "kind": "model", "run": run}, tied)


def tied_names(model: torch.nn.Module) -> dict[str, str]:
    """Further names of tensors, and the names under which they are kept."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, torch.Tensor) and first.setdefault(id(value), name) != name:
            tied[name] = first[id(value)]
    return tied

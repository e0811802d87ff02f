"""The coordinator's folder: checkpoints of its state, and the model as anyone can load it.

Written as a node writes its own (`edge.disk.checkpoint_files`). What a crash costs is in
docs/ist.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import torch

from murmurate.edge.disk import checkpoint as files
from murmurate.edge.disk import written_by
from murmurate.edge.disk.checkpoint_files import CheckpointFiles
from murmurate.errors import CheckpointError
from murmurate_coordinator.checkpoint import SavedSolver

KIND = "coordinator"
MODEL = "model.safetensors"
ENDED = "ended"
"""Written when the run was ended by a word: remove it to go on."""
Tensors = Mapping[str, torch.Tensor]


class CoordinatorKeeper:
    """`put` blocks and belongs into a thread; the rest is quick."""

    def __init__(
        self,
        path: str,
        *,
        every_s: float,
        run: str,
        rule: str,
        structure: str,
        mode: str = "ist",
        tied: Mapping[str, str],
    ) -> None:
        """Take the folder and look what is there; CheckpointError: it is not for this run."""
        self.restored: SavedSolver | None = None
        self._is = {"kind": KIND, "run": run, "mode": mode, "rule": rule, "structure": structure}
        self._tied = tied
        self.checkpoints = CheckpointFiles(path, every_s)
        self.folder = self.checkpoints.folder
        try:
            self._find()
        except BaseException:
            self.folder.close()
            raise

    def _find(self) -> None:
        """The newest whole one is `restored`; those before it are kept as they are."""

        def read(path: Path) -> SavedSolver | None:
            if self.restored is None:
                self.restored = files.read_tensors(path, partial(self._mine, path))
            return self.restored

        self.checkpoints.kept = sorted(number for number, _ in self.checkpoints.whole(read))
        self.checkpoints.require_whole(self.restored, "the coordinator")

    def _mine(self, path: Path, about: Any, tensors: dict[str, torch.Tensor]) -> SavedSolver:
        if about.get("kind") != KIND:
            raise CheckpointError(f"{path}: a node's, not a coordinator's; give it its own folder")
        written_by.check(about, path)
        for what in ("run", "mode", "rule"):
            had = about.get(what, "ist") if what == "mode" else about[what]  # older ones say none
            if had != self._is[what]:
                raise CheckpointError(
                    f"{path}: of {what} {had!r}, this coordinator has {self._is[what]!r}"
                )
        if about["structure"] != self._is["structure"]:
            raise CheckpointError(f"{path}: of another model")
        return SavedSolver(tensors, about)

    # -- the end of the run ----------------------------------------------------------------------

    @property
    def ended(self) -> Path | None:
        """The file that says that this run was ended by a word; None: it may go on."""
        path = self.folder.path / ENDED
        return path if path.exists() else None

    def mark_ended(self, reason: str) -> None:
        """Whatever starts this program again, this run does not go on; a full disk costs a line."""

        def write(file: BinaryIO) -> None:
            file.write(f"{reason}\n".encode())

        try:
            self.folder.put(ENDED, write)
        except OSError as error:
            self.checkpoints.complain(error)

    # -- writing ---------------------------------------------------------------------------------

    def due(self, now: float) -> bool:
        return self.checkpoints.due(now)

    def soon(self) -> None:
        """Something was dealt anew: better not to forget it."""
        self.checkpoints.within(self.every_s / 10)

    @property
    def age_s(self) -> float:
        """Since the last good one of this process; infinite: there was none."""
        return self.checkpoints.age_s

    @property
    def every_s(self) -> float:
        return self.checkpoints.every_s

    @property
    def failures(self) -> int:
        return self.checkpoints.failures

    def put(self, saved: SavedSolver, model: Tensors) -> bool:
        """Durable when this returns True; a full disk costs a line."""
        about = {**saved.about, **self._is, **written_by.mark()}
        self.checkpoints.begin()
        number = self.checkpoints.put(
            lambda file: files.write_tensors(file, saved.tensors, about, self._tied),
            {MODEL: lambda file: self.write_model(file, model)},
        )
        return number is not None

    def write_model(self, file: Any, model: Tensors) -> None:
        write_model(file, model, self._tied, self._is["run"])

    def close(self) -> None:
        self.checkpoints.close()


def write_model(file: Any, model: Tensors, tied: Mapping[str, str], run: str) -> None:
    """A file that loads into the plain model; tied tensors are there once (`load_model`)."""
    files.write_tensors(file, model, {**written_by.mark(), "kind": "model", "run": run}, tied)


def tied_names(model: torch.nn.Module) -> dict[str, str]:
    """Further names of tensors, and the names under which they are kept."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, torch.Tensor) and first.setdefault(id(value), name) != name:
            tied[name] = first[id(value)]
    return tied

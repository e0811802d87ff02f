"""Doing many cells, each once: a finished one is a file, so a race that was killed goes on."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

from murmurate.errors import ConfigError
from murmurate.study.race import results, up_options
from murmurate.study.race.cell_process import end_with
from murmurate.study.race.race_file import RaceCell

Json = dict[str, Any]


class FinishedCells:
    """The folder of finished cells: a file each, there whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, cell: RaceCell) -> Json | None:
        """None: it is to be done. One that cannot be read is done again."""
        try:
            kept = json.loads(self._file(cell).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        same = isinstance(kept, dict) and kept.get("arguments") == cell.arguments
        return kept["result"] if same else None

    def put(self, cell: RaceCell, result: Json, took_s: float) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        kept = {"solver": cell.solver, "setting": cell.setting, "seed": cell.seed}
        kept |= {"arguments": cell.arguments, "took_s": took_s, "result": result}
        write(self._file(cell), json.dumps(kept, indent=1, allow_nan=False) + "\n")

    def _file(self, cell: RaceCell) -> Path:
        return self.folder / f"{cell.key}.json"


def write(path: Path, text: str) -> None:
    """Whole or not at all, also when the machine goes down."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def do(arguments: Sequence[str]) -> tuple[Json, float]:
    """One cell, in whichever process; what came of it, and the seconds it took."""
    began = time.monotonic()
    report = up_options.run(arguments)
    return results.distilled(report), time.monotonic() - began


def sweep(todo: Sequence[RaceCell], finished: FinishedCells, jobs: int) -> Iterator[RaceCell]:
    """Each cell as it is finished, and by then on the disk."""
    jobs = min(jobs, len(todo))
    if jobs <= 1:
        for cell in todo:
            finished.put(cell, *_named(cell, lambda cell=cell: do(cell.arguments)))
            yield cell
        return
    pool_of = ProcessPoolExecutor(
        jobs, get_context("spawn"), initializer=end_with, initargs=(os.getpid(),)
    )
    with pool_of as pool:
        try:  # from the first process on
            running: dict[Future[tuple[Json, float]], RaceCell] = {
                pool.submit(do, cell.arguments): cell for cell in todo
            }
            for done in as_completed(running):
                cell = running[done]
                finished.put(cell, *_named(cell, done.result))
                yield cell
        except BaseException:  # who is stopped does not wait for the cells that are under way
            pool.shutdown(wait=False, cancel_futures=True)
            for process in active_children():
                process.kill()
            raise


def _named(cell: RaceCell, act: Any) -> tuple[Json, float]:
    try:
        made: tuple[Json, float] = act()
    except ConfigError as error:
        named = f"{cell.solver}, {cell.setting}" if cell.setting else cell.solver
        raise ConfigError(f"{named}, seed {cell.seed}: {error}") from None
    return made

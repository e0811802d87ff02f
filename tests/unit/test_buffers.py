"""Large flat tensors come from blocks that are used again, and never by two at a time."""

import gc
import threading

import torch

from murmurate.core import buffers

SIZE = buffers.BLOCK_BYTES_MIN // 4 + 1


def test_a_freed_block_is_used_again_and_a_held_one_is_not() -> None:
    first = buffers.empty(SIZE, torch.float32)
    place = first.data_ptr()
    second = buffers.empty(SIZE, torch.float32)
    assert second.data_ptr() != place
    del first
    assert buffers.empty(SIZE, torch.float32).data_ptr() == place


def test_a_view_keeps_its_block() -> None:
    whole = buffers.empty(SIZE, torch.float32)
    place, part = whole.data_ptr(), whole.fill_(7.0)[5:10]
    del whole
    gc.collect()
    others = [buffers.empty(SIZE, torch.float32).fill_(1.0) for _ in range(3)]
    assert place not in {other.data_ptr() for other in others}
    assert part.tolist() == [7.0] * 5


def test_numpy_and_bytes_of_it_keep_its_block_too() -> None:
    whole = buffers.empty(SIZE, torch.float32).fill_(3.0)
    view = whole.numpy().data.cast("B")
    del whole
    buffers.empty(SIZE, torch.float32).fill_(4.0)
    assert torch.frombuffer(bytearray(view[:8]), dtype=torch.float32).tolist() == [3.0, 3.0]


def test_blocks_of_large_pages_are_kept_apart() -> None:
    """What is given back in parts must not be one of them."""
    one = buffers.empty(SIZE, torch.float32, large_pages=True)
    at = one.data_ptr()
    one.fill_(1.0)
    del one
    plain = buffers.empty(SIZE, torch.float32)
    assert plain.data_ptr() != at
    again = buffers.empty(SIZE, torch.float32, large_pages=True)
    assert again.data_ptr() == at


def test_only_a_few_free_blocks_are_kept() -> None:
    many = [buffers.empty(SIZE, torch.float32) for _ in range(buffers.FREE_MAX + 3)]
    del many
    assert len(buffers._free[SIZE * 4, False]) == buffers.FREE_MAX


def test_what_waits_can_be_given_back() -> None:
    held = buffers.empty(SIZE, torch.float32).fill_(5.0)
    buffers.empty(SIZE, torch.float32).fill_(6.0)  # nobody holds it any more
    assert any(buffers._free.values())
    buffers.release()
    assert not any(buffers._free.values())
    assert held.eq(5.0).all()


def test_threads_never_get_the_same_block() -> None:
    wrong = []

    def work(mark: float) -> None:
        for _ in range(50):
            mine = buffers.empty(SIZE, torch.float32).fill_(mark)
            copy = buffers.clone(mine)
            if not (mine.eq(mark).all() and copy.eq(mark).all()):
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(float(mark),)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_small_ones_and_empty_ones_are_ordinary() -> None:
    assert buffers.empty(0, torch.float64).numel() == 0
    assert buffers.clone(torch.arange(3)).tolist() == [0, 1, 2]


def test_a_part_that_is_of_no_use_is_given_back() -> None:
    """Whole pages of it alone: what lies beside it is still there."""
    flat = buffers.empty(SIZE, torch.float32).fill_(7.0)
    buffers.forget(flat[1000:9000])
    assert flat[:1000].eq(7.0).all()
    assert flat[9000:].eq(7.0).all()
    assert flat[2048:8192].eq(0.0).all(), "fresh pages"
    buffers.forget(torch.ones(3))  # not from here: it stays as it is


def test_what_is_needed_once_is_not_kept() -> None:
    buffers.release()
    buffers.empty(SIZE, torch.float32, once=True).fill_(1.0)
    assert not any(buffers._free.values())

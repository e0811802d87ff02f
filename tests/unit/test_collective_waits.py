"""How a member waits for an operation of its group: gloo, and nccl by stand-ins (no GPU here)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from murmurate.edge.net import collective
from murmurate.edge.net.collective import GroupBroken, until_done, until_done_on_a_device


class Work:
    """Done after so many questions; a wait with a limit before that fails, as torch's do."""

    def __init__(self, asks: float, error: str = "") -> None:
        self.asks, self.error, self.waits = asks, error, 0
        self.limits: list[timedelta | None] = []

    def is_completed(self) -> bool:
        self.asks -= 1
        return self.asks < 0

    def wait(self, limit: timedelta | None = None) -> None:
        self.limits.append(limit)
        if self.error:
            raise RuntimeError(self.error)
        if limit is not None and not self.is_completed():
            raise RuntimeError("timed out")


class Group:
    aborted = 0

    def abort(self) -> None:
        self.aborted += 1


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective, "LOOK_S", 0.0)


def test_on_a_device_it_is_asked_and_waited_for_without_a_limit() -> None:
    group, work = Group(), Work(asks=5)
    until_done_on_a_device(group, work, lambda: "")
    assert work.limits == [None]
    assert not group.aborted


def test_on_a_device_a_group_of_which_one_died_is_aborted() -> None:
    group, work = Group(), Work(asks=float("inf"))
    said = iter(["", "", "node-1 is gone"])
    with pytest.raises(GroupBroken, match="node-1 is gone"):
        until_done_on_a_device(group, work, lambda: next(said))
    assert group.aborted == 1
    assert not work.limits
    with pytest.raises(GroupBroken):  # an older torch has no abort
        until_done_on_a_device(object(), work, lambda: "gone")


def test_what_went_wrong_on_a_device_is_raised() -> None:
    with pytest.raises(RuntimeError, match="remote process exited"):
        until_done_on_a_device(Group(), Work(asks=0, error="remote process exited"), lambda: "")


def test_by_gloo_a_wait_that_is_over_is_begun_again() -> None:
    work = Work(asks=6)
    until_done(work, lambda: "")
    assert len(work.limits) > 1
    with pytest.raises(GroupBroken, match="gone"):
        until_done(Work(asks=float("inf")), lambda: "node-2 is gone")

"""The runtime over a transport made by hand: what it hears, tells and refuses; no socket."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from murmurate.core.clock import Clock
from murmurate.core.figures.progress import Progress
from murmurate.core.layout import Layout, TensorSpec
from murmurate.core.message import Snapshot, SnapshotRequest
from murmurate.core.publishing.own_update import OwnUpdate
from murmurate.edge.net.transport import Ears
from murmurate.edge.net.wire import PROTOCOL_VERSION, Description, Hello, PushHead
from murmurate.edge.runtime.node_state import Settings
from murmurate.edge.runtime.runtime import Runtime
from murmurate.errors import (
    LocalProtocolError,
    PeerExists,
    PeerUnavailable,
    RemoteProtocolError,
    SchemaMismatch,
)

WAIT_S = 10.0
LAYOUT = Layout([TensorSpec("w", "float32", (4,))])


class Post:
    """A transport that keeps what it is given to carry."""

    def __init__(self) -> None:
        self.address = "here:1"
        self.bytes_sent = self.bytes_received = 0
        self.ears: Ears | None = None
        self.said: Hello | None = None
        self.met: dict[str, str] = {}
        self.posted: list[tuple[str, Any]] = []
        self.carried: list[tuple[str, Any]] = []
        self.came = threading.Condition()

    async def start(self, ears: Ears) -> None:
        self.ears = ears

    async def describe(self, address: str, timeout_s: float) -> Description:
        raise PeerUnavailable(f"{address}: nobody")

    def hello(self, hello: Hello) -> None:
        self.said = hello

    def meet(self, name: str, address: str) -> None:
        self.met[name] = address

    def drop(self, name: str) -> None:
        self.met.pop(name, None)

    def post(self, to: str, message: Any) -> None:
        with self.came:
            self.posted.append((to, message))
            self.came.notify_all()

    def free(self, to: str) -> bool:
        return True

    def carry(self, to: str, message: Any) -> None:
        with self.came:
            self.carried.append((to, message))
            self.came.notify_all()

    async def stop(self, grace_s: float) -> None:
        self.met.clear()

    def wait_for(self, true: Callable[[], bool]) -> None:
        with self.came:
            assert self.came.wait_for(true, WAIT_S)


@pytest.fixture
def post() -> Post:
    return Post()


@pytest.fixture
def runtime(post: Post) -> Iterator[Runtime]:
    made = Runtime(Settings(run="r", name="a", seed=0), LAYOUT, torch.zeros(4), post)
    made.start()
    yield made
    made.stop(grace_s=0.0)


def hello(runtime: Runtime, **other: Any) -> Hello:
    said = Hello(
        version=PROTOCOL_VERSION,
        run="r",
        swarm=runtime.figures.swarm,
        schema=LAYOUT.schema,
        name="b",
        epoch=1,
        address="there:1",
    )
    return replace(said, **other)


def test_one_that_is_alone_founds_the_run_and_introduces_itself(
    runtime: Runtime, post: Post
) -> None:
    described = runtime.describe()
    assert described.synced
    assert (described.name, described.run) == ("a", "r")
    assert [member.name for member in described.members] == ["a"]
    assert runtime.training.life().synced
    assert runtime.look(lambda here: here.ready)
    on_loop(runtime, lambda: None)  # what a life says first was put before this
    assert post.said is not None
    assert (post.said.name, post.said.swarm) == ("a", runtime.figures.swarm)


def test_no_thread_remains(post: Post) -> None:
    runtime = Runtime(Settings(run="r", name="a"), LAYOUT, torch.zeros(4), post)
    runtime.start()
    runtime.stop(grace_s=0.0)
    runtime.stop(grace_s=0.0)
    assert "murmurate" not in [thread.name for thread in threading.enumerate()]


def test_one_that_finds_nobody_says_so_and_is_gone(post: Post) -> None:
    settings = Settings(run="r", name="a", peers=("x:1",), found=False, join_timeout_s=0.3)
    runtime = Runtime(settings, LAYOUT, torch.zeros(4), post)
    with pytest.raises(PeerUnavailable, match="nobody"):
        runtime.start()
    assert "murmurate" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize(
    ("other", "error"),
    [
        ({"run": "x"}, SchemaMismatch),
        ({"swarm": "x"}, SchemaMismatch),
        ({"schema": "x"}, SchemaMismatch),
        ({"name": "a"}, PeerExists),
    ],
)
def test_who_does_not_belong_here_is_refused(
    runtime: Runtime, other: dict[str, str], error: type[Exception]
) -> None:
    with pytest.raises(error):
        runtime.ears.greet(hello(runtime, **other))


def test_who_greets_is_met(runtime: Runtime, post: Post) -> None:
    welcome = runtime.ears.greet(hello(runtime))
    assert welcome.name == "a"
    assert post.met == {"b": "there:1"}


def test_an_update_is_in_weights_clock_and_figures(runtime: Runtime) -> None:
    port = runtime.training
    port.commit(OwnUpdate(torch.ones(4), port.context(), 0.1))
    assert port.weights.tolist() == [1.0] * 4
    assert len(port.context()) == 1
    assert runtime.figures.progress().published == 1
    with pytest.raises(LocalProtocolError):
        port.commit(OwnUpdate(torch.full((4,), float("nan")), port.context(), 0.1))
    assert port.whole
    assert runtime.figures.progress().published == 1


def test_an_earlier_word_of_another_is_no_news(runtime: Runtime) -> None:
    ears = runtime.ears
    for version, samples in ((2, 20), (1, 10)):
        told = Progress(name="b", epoch=1, version=version, samples=samples)
        ears.received("b", told, lambda: None)
    assert runtime.figures.samples_of() == {"a": 0, "b": 20}


def test_who_asks_gets_a_snapshot_and_my_progress_before_it(runtime: Runtime, post: Post) -> None:
    ears, port = runtime.ears, runtime.training
    ears.greet(hello(runtime))
    port.commit(OwnUpdate(torch.ones(4), port.context(), 0.1))
    on_loop(runtime, lambda: ears.received("b", SnapshotRequest(), lambda: None))
    post.wait_for(lambda: bool(post.carried))
    ((to, snapshot),) = post.carried
    assert to == "b"
    assert isinstance(snapshot, Snapshot)
    assert snapshot.weights.tolist() == [1.0] * 4
    assert any(isinstance(message, Progress) for to, message in post.posted if to == "b")
    assert runtime.giving.receivers == {"b"}
    on_loop(runtime, lambda: ears.landed("b", snapshot))
    assert runtime.giving.receivers == set()


def test_a_head_of_another_model_is_refused(runtime: Runtime) -> None:
    with pytest.raises(RemoteProtocolError):
        runtime.ears.expected_bytes(PushHead((), "f8"))
    assert runtime.ears.expected_bytes(PushHead((), "f4")) == LAYOUT.nbytes


def test_what_is_rejected_is_counted_and_said_once_a_second(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        runtime.ears.rejected("malformed", "b", "nonsense")
    assert dict(runtime.figures.progress().rejected) == {"malformed": 5}
    assert caplog.text.count("rejected (malformed)") == 1


def test_a_failure_is_raised_where_training_looks(runtime: Runtime) -> None:
    runtime.training.check()
    runtime.ears.fault(ZeroDivisionError("a bug"))
    runtime.ears.fault(KeyError("a second one"))
    assert runtime.failed
    with pytest.raises(ZeroDivisionError):
        runtime.training.check()


def test_what_is_said_at_the_end_is_told(runtime: Runtime) -> None:
    port = runtime.training
    assert port.others.are("done"), "there are none"
    port.others.tell("done")
    port.others.tell("settled")
    mine = runtime.figures.progress()
    assert mine.done
    assert mine.settled
    port.others.take_leave()
    assert not runtime.look(lambda here: here.ready)
    assert port.others.may_go()


def test_the_clock_of_an_instant_is_a_copy(runtime: Runtime) -> None:
    before = runtime.training.context()
    runtime.training.commit(OwnUpdate(torch.ones(4), before, 0.1))
    assert before == Clock()
    assert runtime.training.context() != before


def on_loop(runtime: Runtime, act: Callable[[], None]) -> None:
    """As a transport does it: on the thread of the event loop."""
    done = threading.Event()

    def acted() -> None:
        act()
        done.set()

    runtime.look(lambda here: here.driver.consumed.append(acted))
    runtime.training.flush(at_once=True)
    assert done.wait(WAIT_S)

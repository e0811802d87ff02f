"""A coordinator in a process of its own, killed and started again; its members are here."""

from __future__ import annotations

import json
import re
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.integration.programs import Program

from murmurate import workloads
from murmurate.edge.net.credentials import PLAINTEXT
from murmurate.programs.cli.main import main
from murmurate.training import unasked_pace
from murmurate.training.member import Member
from murmurate.workloads import DataShare, Split

WAIT_S = 90.0


def until(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.02)
    return found


class Coordinator:
    """`murmurate coordinator` as anyone would start it."""

    def __init__(self, folder: Path, port: int, *more: str) -> None:
        self.folder = folder
        self.address = f"127.0.0.1:{port}"
        self.words = [
            *("coordinator", "--workload", "digits", "--listen", f"127.0.0.1:{port}"),
            *("--metrics", "127.0.0.1:0", "--checkpoint", str(folder / "state")),
            *("--checkpoint-every-s", "0.3", "--report", str(folder / "report.json")),
            *more,
        ]
        self.program = Program(*self.words)
        line = until(lambda: self.said(r"figures at http://([^/\s]+)/"))
        self.page = f"http://{line[1]}"

    @property
    def lines(self) -> list[str]:
        return self.program.errors

    def said(self, pattern: str) -> re.Match[str] | None:
        assert self.program.process.poll() is None or self.lines, "it has not started"
        return next((m for line in self.lines if (m := re.search(pattern, line))), None)

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"{self.page}{path}", timeout=WAIT_S) as answer:
            found: bytes = answer.read()
        return found

    def row(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.get("/coordinator.json"))["coordinator"]
        return found

    def kill(self) -> None:
        self.program.kill()

    def terminate(self) -> None:
        """As `kubectl drain` does."""
        self.program.process.send_signal(signal.SIGTERM)
        assert self.program.wait(WAIT_S) == 0, "".join(self.lines)

    def end(self) -> dict[str, Any]:
        """The explicit word: the last pushes, then the report."""
        assert main(["stop", self.address, "--timeout", str(WAIT_S)]) == 0
        assert self.program.wait(WAIT_S) == 0, "".join(self.lines)
        found: dict[str, Any] = json.loads((self.folder / "report.json").read_text())
        return found


class Worker(threading.Thread):
    def __init__(self, address: str, index: int) -> None:
        super().__init__(daemon=True)
        self.address, self.index = address, index
        self.member: Member | None = None
        self.steps = 0
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            workload = workloads.load("digits")
            model = workload.model()
            optimizer = workload.optimizer(model)
            share = DataShare(self.index, 2, Split("none"), 0, workload.batch_size)
            batches = workload.batches(share)
            with Member(
                model,
                optimizer,
                run="murmurate",
                coordinator=self.address,
                name=f"w{self.index}",
                width=1.0,
                example=(next(batches)[0][:2],),
                join_timeout_s=WAIT_S,
                credentials=PLAINTEXT,
            ) as member:
                self.member = member
                while not member.stopped:
                    optimizer.zero_grad()
                    workload.loss(member.model, next(batches)).backward()
                    optimizer.step()
                    self.steps += 1
                    time.sleep(0.002)
        except BaseException as error:  # noqa: BLE001 - told to the test
            self.failure = error


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
    return found


def test_killed_and_started_again_it_goes_on_and_no_step_is_lost(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unasked_pace, "SHARE", 0.1)  # pushes are waited for, and come soon
    first = Coordinator(tmp_path, port, "--founders", "2")
    workers = [Worker(f"127.0.0.1:{port}", k) for k in range(2)]
    try:
        until(lambda: first.row()["pushes"] >= 20)
        files = sorted((tmp_path / "state").glob("checkpoint-*.safetensors"))
        until(lambda: sorted((tmp_path / "state").glob("checkpoint-*.safetensors"))[-1] > files[-1])
        leases = [worker.member.lease for worker in workers if worker.member is not None]
        before = first.row()
    finally:
        first.kill()
    steps = [worker.steps for worker in workers]
    until(lambda: all(w.steps >= s + 20 for w, s in zip(workers, steps, strict=True)))  # free
    second = Coordinator(tmp_path, port, "--founders", "2")
    try:
        assert second.said(r"goes on from .*: plan \d+, [\d,]+ pushes, 2 leases"), second.lines
        until(lambda: second.row()["members"]["training"] == 2)
        until(lambda: second.row()["pushes"] >= before["pushes"] + 5)
        assert [w.member.lease for w in workers if w.member is not None] == leases
        metrics = second.get("/metrics").decode()
        assert 'murmurate_subnet_share_ratio{member="w0"}' in metrics
        assert "murmurate_leases 2.0" in metrics
        assert second.get("/readyz") == b"ok\n"
        served = tmp_path / "served.safetensors"
        served.write_bytes(second.get("/model.safetensors"))
        report = second.end()
    finally:
        second.kill()
    for worker in workers:
        worker.join(WAIT_S)
        assert worker.failure is None
        assert worker.member is not None
        assert worker.member.steps_lost == 0
    made = sum(worker.steps for worker in workers)
    assert report["ended"] == "stopped"
    assert report["samples"] == made * workloads.load("digits").batch_size
    assert {row["name"]: row["steps"] for row in report["nodes"][1:]} == {
        f"w{worker.index}": worker.steps for worker in workers
    }
    assert report["shares"].keys() == {"w0", "w1"}
    # What was assembled loads into the plain model, and knows its digits.
    workload = workloads.load("digits")
    for file in (served, tmp_path / "state" / "model.safetensors"):
        model = workload.model()
        model.load_state_dict(load_file(file))
        found = workload.evaluate(model).accuracy
    assert found == pytest.approx(report["accuracy_mean"])
    assert found > 0.5
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())


def test_it_trains_a_subnet_itself(tmp_path: Path, port: int) -> None:
    """`--train`: a member of its own, which is merged like any other, and ends with it."""
    it = Coordinator(tmp_path, port, "--train", "--width", "1")
    try:
        until(lambda: it.row()["pushes"] >= 3)
        report = it.end()
    finally:
        it.kill()
    own = report["nodes"][1]
    assert (own["name"], own["share"]) == ("own-member", 1.0)
    assert own["samples"] == report["samples"] > 0
    assert it.said(r"own-member ends .* 0 of \d+ steps lost")


def member(folder: Path, address: str, index: int, mode: str = "ist") -> Program:
    """`murmurate node --mode ist`, or `hub`, as anyone would start it."""
    width = ("--width", "1") if mode == "ist" else ()
    return Program(
        *("node", "--mode", mode, "--coordinator", address, "--workload", "digits"),
        *("--name", f"m{index}", *width, "--slow-s", "0.005", "--threads", "1"),
        *("--report", str(folder / f"m{index}.json")),
    )


@pytest.mark.parametrize("rule", ["async", pytest.param("lease", marks=pytest.mark.slow)])
def test_a_sigterm_of_the_coordinator_is_not_the_end_of_the_run(
    tmp_path: Path, port: int, rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its pod is evicted and comes back: no member ends, no step that was taken is lost. Only the
    word ends the run, and then it stays ended."""
    address = f"127.0.0.1:{port}"
    # So seldom that only the last checkpoint can have what was pushed.
    more = ("--founders", "2", "--rule", rule, "--every", "20", "--checkpoint-every-s", "600")
    first = Coordinator(tmp_path, port, *more)
    members = [member(tmp_path, address, index) for index in range(2)]
    try:
        until(lambda: first.row()["pushes"] >= 4)
        first.terminate()
        away = first.said(r"goes away \(SIGTERM\): plan \d+, ([\d,]+) pushes are in .*/state")
        assert away, "".join(first.lines)
        assert json.loads((tmp_path / "report.json").read_text())["ended"] == "SIGTERM"
        second = Coordinator(tmp_path, port, *more)
        assert second.said(rf"goes on from .*: plan \d+, {away[1]} pushes, 2 leases")
        pushes = int(away[1].replace(",", ""))
        until(lambda: second.row()["pushes"] >= pushes + 4)
        assert second.row()["members"]["training"] == 2
        assert [each.process.poll() for each in members] == [None, None], "a member ended"
        report = second.end()
        assert [each.wait(WAIT_S) for each in members] == [0, 0]
        assert "ends: 2 members push what they have" in capsys.readouterr().out
        told = {f"m{k}": json.loads((tmp_path / f"m{k}.json").read_text()) for k in range(2)}
        in_model = {row["name"]: row["steps"] for row in report["nodes"][1:]}
        made = {name: row["steps"] - row["steps_lost"] for name, row in told.items()}
        assert in_model == made
        if rule == "async":  # a lease that holds loses nothing, not even what was never pushed
            assert {name: row["steps_lost"] for name, row in told.items()} == {"m0": 0, "m1": 0}
        for each in members:
            said = "".join(each.errors)
            assert "training goes on" in said, said
            assert "Traceback" not in said
    finally:
        first.kill()
        for each in members:
            each.kill()
    again = Program(*second.words)
    try:
        assert again.wait(WAIT_S) == 3
    finally:
        again.kill()
    (line,) = again.errors
    assert f"remove {tmp_path}/state/ended" in line


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["async", "sync", "fedavg-async", "easgd"])
def test_nor_is_it_of_a_hub(tmp_path: Path, port: int, rule: str) -> None:
    """Evicted, started again at its address from its volume: members go on, and all that it says it
    has of them when it goes is in what it goes on from."""
    address = f"127.0.0.1:{port}"
    more = ("--mode", "hub", "--founders", "2", "--rule", rule, "--checkpoint-every-s", "600")
    first = Coordinator(tmp_path, port, *more)
    members = [member(tmp_path, address, index, "hub") for index in range(2)]
    try:
        until(lambda: first.row()["pushes"] >= 8)
        first.terminate()
        away = first.said(r"goes away \(SIGTERM\): plan \d+, ([\d,]+) pushes are in .*/state")
        assert away, "".join(first.lines)
        before = json.loads((tmp_path / "report.json").read_text())
        assert before["ended"] == "SIGTERM"
        second = Coordinator(tmp_path, port, *more)
        assert second.said(rf"goes on from .*: plan \d+, {away[1]} pushes")
        pushes = int(away[1].replace(",", ""))
        until(lambda: second.row()["pushes"] >= pushes + 8)
        assert [each.process.poll() for each in members] == [None, None], "a member ended"
        report = second.end()
        assert [each.wait(WAIT_S) for each in members] == [0, 0]
        taken = {row["name"]: row["steps"] for row in before["nodes"][1:]}
        for row in report["nodes"][1:]:
            told = json.loads((tmp_path / f"{row['name']}.json").read_text())
            assert row["steps"] >= taken[row["name"]], "it was in the model when it went"
            # An answer that was lost on its way: the member takes for lost what is in.
            assert told["steps"] - told["steps_lost"] <= row["steps"] <= told["steps"]
        for each in members:
            said = "".join(each.errors)
            assert "Traceback" not in said, said
    finally:
        first.kill()
        for each in members:
            each.kill()

"""A push over the wire, against bare TCP and against one protobuf message.

    python bench/wire.py [--samples 7] [--json out.json]

Each contender is a pair of processes on loopback; the pairs take turns in random order in one run.
Time: from the call in the origin, whose tensor is in memory, to the moment the peer has the whole
tensor (`Ears.received`). The peer compares every byte with what it must be, outside of the time,
then says so to the origin (a byte, a small message, the answer of the call), which sends the next.

    murmurate   our transport, malloc set as a node sets it
    tcp         one socket (cubic), sendall from the tensor, recv_into a buffer that exists
    unary       gRPC as in its examples: one message with a `bytes` field, sync, default malloc

CPU: both processes, all threads, kernel included, until the origin knows that it has landed. RSS:
the highest of the first transfer of a fresh pair beyond what the process had before there was a
payload, so at the origin the tensor itself is in it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import torch

SIZES = {
    "0.24 MB": 240_000,
    "4 MB": 4_000_000,
    "100 MB": 100_000_000,
    "500 MB": 500_000_000,
}
BURSTS = {"0.24 MB": 30, "4 MB": 10, "100 MB": 1, "500 MB": 1}
"""Pushes of one sample, each begun when the one before is there; their median counts."""
CONTENDERS = ("murmurate", "tcp", "unary")
GOALS = {
    "500 MB / tcp": (0.25, 0.18),
    "100 MB / tcp": (0.30, 0.22),
    "4 MB / tcp": (0.20, 0.14),
    "0.24 MB / tcp": (0.10, 0.06),
    "100 MB / unary": (7.0, 5.0),
}
"""Ratio of speeds: the goal, and the floor below which this command fails."""
CEILINGS = {
    "cpu_s_per_gb": (1.2, 1.6),
    "origin_rss": (1.1, 1.2),
    "peer_rss": (1.5, 2.0),
}


# -- what is sent --------------------------------------------------------------------------------


def tensor(nbytes: int, seq: int) -> torch.Tensor:
    """A payload that says which one it is in every element."""
    return torch.arange(nbytes // 4, dtype=torch.int32).add_(seq * 7).view(torch.float32)


def is_right(payload: torch.Tensor, nbytes: int, seq: int) -> bool:
    return torch.equal(payload.view(torch.int32), tensor(nbytes, seq).view(torch.int32))


# -- the processes -------------------------------------------------------------------------------


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def orders() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


class Meter:
    """CPU time and peak memory since `start`."""

    def start(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
        self._rss = self._status("VmRSS")
        self._cpu = time.process_time()

    def cpu_s(self) -> float:
        return time.process_time() - self._cpu

    def rss(self) -> int:
        return self._status("VmHWM") - self._rss

    @staticmethod
    def _status(key: str) -> int:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1]) * 1024
        raise KeyError(key)


class Inbox:
    """What the receiving process answers for each row of transfers."""

    def __init__(self) -> None:
        self.meter = Meter()
        self.nbytes = self.seq = self.times = 0
        self.at: list[float] = []

    def follow(self) -> None:
        """Do as the conductor says, until it says no more."""
        for order in orders():
            self.nbytes, self.seq, self.times = order["nbytes"], order["seq"], order["times"]
            self.at = []
            self.prepare()
            self.meter.start()
            say(armed=self.seq)

    def prepare(self) -> None:
        pass

    def arrived(self, payload: torch.Tensor) -> None:
        self.at.append(time.monotonic())
        cpu_s, rss = self.meter.cpu_s(), self.meter.rss()
        assert is_right(payload, self.nbytes, self.seq), "it did not arrive as it was sent"
        self.seq += 1
        if len(self.at) == self.times:
            say(at=self.at, cpu_s=cpu_s, rss=rss)


class Outbox:
    """What the sending process answers for each row of transfers."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.nbytes, self.times = order["nbytes"], order["times"]
        self.meter = Meter()
        self.meter.start()
        self.payloads = [tensor(self.nbytes, order["seq"] + i) for i in range(self.times)]
        self._cpu_s = self.meter.cpu_s()
        self.began: list[float] = []

    def rows(self) -> Iterator[torch.Tensor]:
        for payload in self.payloads:
            self.began.append(time.monotonic())
            yield payload
        say(began=self.began, cpu_s=self.meter.cpu_s() - self._cpu_s, rss=self.meter.rss())


# -- ours ----------------------------------------------------------------------------------------


class Ears:
    def __init__(self, name: str, inbox: Inbox | None = None) -> None:
        self.name = name
        self.inbox = inbox
        self.confirmed: asyncio.Future[None]
        self.confirm: Callable[[], None]

    def greeting(self) -> dict[str, Any]:
        return {
            "run": "bench",
            "swarm": "1",
            "schema": "s",
            "name": self.name,
            "epoch": 1,
            "address": "x:1",
        }

    def greet(self, hello: Any) -> Any:
        from murmurate.io.wire import Welcome

        return Welcome(**self.greeting())

    def describe(self) -> Any:
        raise NotImplementedError

    def expected_bytes(self, head: Any) -> int:
        assert self.inbox is not None
        return self.inbox.nbytes

    def wants(self, sender: str, head: Any) -> bool:
        return True

    def heard(self, sender: str) -> None:
        pass

    def received(self, sender: str, message: Any, done: Any) -> None:
        if self.inbox is None:
            self.confirmed.set_result(None)
            return
        self.inbox.arrived(message.payload)
        done()
        self.confirm()

    def landed(self, to: str, message: Any) -> None:
        pass

    def lost(self, to: str, message: Any) -> None:
        if not self.confirmed.done():
            self.confirmed.set_exception(RuntimeError("lost"))

    def refused(self, to: str, error: Exception) -> None:
        print(error, file=sys.stderr)

    def rejected(self, reason: str, sender: str, detail: str) -> None:
        print(reason, sender, detail, file=sys.stderr)


async def murmurate_peer() -> None:
    from murmurate.core.message import Ping
    from murmurate.io.grpc_transport import GrpcTransport
    from murmurate.io.wire import Hello

    inbox = Inbox()
    ears = Ears("b", inbox)
    transport = GrpcTransport("127.0.0.1:0")
    ears.confirm = lambda: transport.post("a", Ping(1))
    await transport.start(ears)
    transport.hello(Hello(**ears.greeting()))
    say(address=transport.address)
    loop = asyncio.get_running_loop()
    line = await loop.run_in_executor(None, sys.stdin.readline)  # where the origin is
    transport.meet("a", json.loads(line)["address"])
    await loop.run_in_executor(None, inbox.follow)
    await transport.stop(0.0)


async def murmurate_origin(address: str) -> None:
    from murmurate.core.clock import Clock, Dot
    from murmurate.core.message import Push, Stamp
    from murmurate.io.grpc_transport import GrpcTransport
    from murmurate.io.wire import Hello

    loop = asyncio.get_running_loop()
    ears = Ears("a")
    transport = GrpcTransport("127.0.0.1:0")
    await transport.start(ears)
    say(address=transport.address)
    transport.hello(Hello(**ears.greeting()))
    transport.meet("b", address)
    lines = orders()
    seq = 0
    while (order := await loop.run_in_executor(None, lambda: next(lines, None))) is not None:
        for payload in Outbox(order).rows():
            seq += 1
            ears.confirmed = loop.create_future()
            transport.carry("b", Push((Stamp(Dot("a", 1, seq), Clock()),), payload))
            await ears.confirmed
            while not transport.free("b"):  # a large one may still be on its way to `landed`
                await asyncio.sleep(0.001)
    await transport.stop(0.0)


# -- bare TCP ------------------------------------------------------------------------------------


def tcp_options(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")


class TcpInbox(Inbox):
    def __init__(self) -> None:
        super().__init__()
        self.buffer = torch.ones(1)
        self.go = threading.Semaphore(0)

    def prepare(self) -> None:
        if self.buffer.numel() * 4 != self.nbytes:
            self.buffer = torch.ones(self.nbytes // 4)  # there, and touched
        self.go.release()


def tcp_peer() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    tcp_options(listening)
    say(address="{}:{}".format(*listening.getsockname()))
    inbox = TcpInbox()
    threading.Thread(target=inbox.follow, daemon=True).start()
    sock, _ = listening.accept()
    tcp_options(sock)
    while True:
        inbox.go.acquire()
        view = inbox.buffer.view(torch.uint8).numpy().data
        for _ in range(inbox.times):
            filled = 0
            while filled < inbox.nbytes:
                got = sock.recv_into(view[filled:])
                if not got:
                    return
                filled += got
            inbox.arrived(inbox.buffer)
            sock.sendall(b"k")


def tcp_origin(address: str) -> None:
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)))
    tcp_options(sock)
    for order in orders():
        for payload in Outbox(order).rows():
            sock.sendall(payload.view(torch.uint8).numpy().data)
            sock.recv(1)


# -- one protobuf message ------------------------------------------------------------------------


def unary_peer() -> None:
    import grpc
    from google.protobuf.wrappers_pb2 import BytesValue

    warnings.simplefilter("ignore", UserWarning)  # a tensor on memory one may not write to
    inbox = Inbox()

    def take(request: Any, _: Any) -> Any:
        inbox.arrived(torch.frombuffer(request.value, dtype=torch.float32))
        return BytesValue()

    server = grpc.server(
        futures.ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", -1)]
    )
    method = grpc.unary_unary_rpc_method_handler(
        take,
        request_deserializer=BytesValue.FromString,
        response_serializer=BytesValue.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("bench.Push", {"Push": method}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    say(address=f"127.0.0.1:{port}")
    inbox.follow()
    server.stop(None)


def unary_origin(address: str) -> None:
    import grpc
    from google.protobuf.wrappers_pb2 import BytesValue

    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(address, options=options) as channel:
        call = channel.unary_unary(
            "/bench.Push/Push",
            request_serializer=BytesValue.SerializeToString,
            response_deserializer=BytesValue.FromString,
        )
        for order in orders():
            for payload in Outbox(order).rows():
                call(BytesValue(value=payload.numpy().tobytes()))


def play(role: str, contender: str, address: str) -> None:
    torch.set_num_threads(1)
    if contender == "murmurate":
        from murmurate.io.malloc import keep_memory

        keep_memory()
        asyncio.run(murmurate_peer() if role == "peer" else murmurate_origin(address))
    elif role == "peer":
        {"tcp": tcp_peer, "unary": unary_peer}[contender]()
    else:
        {"tcp": tcp_origin, "unary": unary_origin}[contender](address)


# -- the conductor -------------------------------------------------------------------------------


class Actor:
    """One process of a pair."""

    def __init__(self, role: str, contender: str, address: str = "") -> None:
        command = [sys.executable, __file__, "--role", role, contender, address]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, **order: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def ask(self, **order: Any) -> dict[str, Any]:
        self.tell(**order)
        return self.hear()

    def hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r}: ended with {self._process.wait()}")
        heard: dict[str, Any] = json.loads(line)
        return heard

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Pair:
    """Two processes of one contender, and a way between them."""

    def __init__(self, contender: str) -> None:
        self.peer = Actor("peer", contender)
        self.origin = Actor("origin", contender, self.peer.hear()["address"])
        if contender == "murmurate":
            self.peer.tell(address=self.origin.hear()["address"])
        self.seq = 1

    def push(self, nbytes: int, times: int = 1) -> dict[str, float]:
        order = {"nbytes": nbytes, "seq": self.seq, "times": times}
        self.seq += times
        self.peer.ask(**order)
        sent = self.origin.ask(**order)
        got = self.peer.hear()
        assert len(got["at"]) == len(sent["began"]) == times
        took = [at - began for at, began in zip(got["at"], sent["began"], strict=True)]
        return {
            "seconds": statistics.median(took),
            "cpu_s": got["cpu_s"] + sent["cpu_s"],
            "origin_rss": sent["rss"] / nbytes,
            "peer_rss": got["rss"] / nbytes,
        }

    def end(self) -> None:
        self.origin.end()
        self.peer.end()


def memory(contender: str, nbytes: int) -> dict[str, float]:
    """Peaks of the first large transfer of two fresh processes."""
    pair = Pair(contender)
    pair.push(SIZES["0.24 MB"])  # opens the link
    first = pair.push(nbytes)
    pair.end()
    return {key: first[key] for key in ("origin_rss", "peer_rss")}


def measure(samples: int, contenders: list[str], sizes: list[str]) -> dict[str, Any]:
    pairs = {contender: Pair(contender) for contender in contenders}
    seconds: dict[str, dict[str, list[float]]] = {
        size: {contender: [] for contender in contenders} for size in sizes
    }
    cpu: dict[str, list[float]] = {contender: [] for contender in contenders}
    rng = random.Random(0)
    for size in sizes:
        nbytes = SIZES[size]
        for sample in range(-1, samples):  # the first warms up and is not counted
            for contender in rng.sample(contenders, len(contenders)):
                if contender == "unary" and size != "100 MB":
                    continue
                taken = pairs[contender].push(nbytes, BURSTS[size])
                if sample < 0:
                    continue
                seconds[size][contender].append(taken["seconds"])
                if nbytes == SIZES["100 MB"]:
                    cpu[contender].append(taken["cpu_s"] / (nbytes / 1e9))
    for pair in pairs.values():
        pair.end()
    return {"seconds": seconds, "cpu_s_per_gb": cpu}


def ratios(taken: dict[str, dict[str, list[float]]], size: str, other: str) -> list[float]:
    """How many times the other's speed, sample by sample."""
    return [b / a for a, b in zip(taken[size]["murmurate"], taken[size][other], strict=True)]


def report(result: dict[str, Any]) -> bool:
    """Print it; False: below a floor."""
    fine = True
    for size, by in result["seconds"].items():
        for contender, seconds in by.items():
            if seconds:
                low, median, high = min(seconds), statistics.median(seconds), max(seconds)
                rate = SIZES[size] / median / 1e9
                print(
                    f"{size:>8} {contender:<10} {median * 1e3:8.2f} ms "
                    f"[{low * 1e3:.2f} .. {high * 1e3:.2f}]  {rate:5.2f} GB/s"
                )
    for name, (goal, floor) in GOALS.items():
        size, _, other = name.partition(" / ")
        if not result["seconds"].get(size, {}).get(other):
            continue
        values = ratios(result["seconds"], size, other)
        value = statistics.median(values)
        fine &= value >= floor
        verdict = "reached" if value >= goal else "missed" if value >= floor else "BELOW THE FLOOR"
        spread = f"[{min(values):.2f} .. {max(values):.2f}]"
        print(f"{name:>16}: {value:.2f} x {spread}, goal {goal}: {verdict}")
    cpu = {k: statistics.median(v) for k, v in result["cpu_s_per_gb"].items() if v}
    print("CPU s/GB:", ", ".join(f"{k} {v:.2f}" for k, v in cpu.items()))
    for contender, peaks in result["memory"].items():
        print(f"peak RSS / payload, {contender}:", {k: round(v, 2) for k, v in peaks.items()})
    ours = {"cpu_s_per_gb": cpu.get("murmurate", 0.0), **result["memory"].get("murmurate", {})}
    for name, (goal, ceiling) in CEILINGS.items():
        value = ours.get(name, 0.0)
        fine &= value <= ceiling
        verdict = "reached" if value <= goal else "missed"
        print(f"{name:>16}: {value:.2f}, goal {goal}: {verdict}")
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES)[:3], choices=list(SIZES))
    parser.add_argument("--once", type=int, metavar="BYTES", help="one push of so many bytes, ours")
    parser.add_argument("--json", type=Path, help="all samples")
    parser.add_argument("--role", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        play(*arguments.role)
        return 0
    if arguments.once:
        pair = Pair("murmurate")
        print(pair.push(arguments.once))
        pair.end()
        return 0
    result = measure(arguments.samples, arguments.contenders, arguments.sizes)
    result["memory"] = {
        contender: memory(contender, SIZES["100 MB"])
        for contender in arguments.contenders
        if contender != "tcp"
    }
    result["machine"] = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.release(),
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1))
    return 0 if report(result) else 1


if __name__ == "__main__":
    sys.exit(main())

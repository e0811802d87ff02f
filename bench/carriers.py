"""The processes of the wire benchmark: how each contender carries a tensor to its peer.

murmurate   our transport, malloc set as a node sets it
tcp         one socket (cubic), sendall from the tensor, recv_into a buffer that exists
gloo        send and recv of torch.distributed, into a buffer that exists; malloc as ours
unary       gRPC as in its examples: one message with a `bytes` field, sync, default malloc
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import torch
from actors import orders, say

# -- what is sent --------------------------------------------------------------------------------


def tensor(nbytes: int, seq: int) -> torch.Tensor:
    """A payload that says which one it is in every element."""
    return torch.arange(nbytes // 4, dtype=torch.int32).add_(seq * 7).view(torch.float32)


def is_right(payload: torch.Tensor, nbytes: int, seq: int) -> bool:
    return torch.equal(payload.view(torch.int32), tensor(nbytes, seq).view(torch.int32))


# -- both sides ---------------------------------------------------------------------------------


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
        from murmurate.edge.net.wire import Hello

        return Hello(**self.greeting())

    def answered(self, hello: Any) -> None:
        pass

    def describe(self) -> Any:
        raise NotImplementedError

    def expected_bytes(self, head: Any) -> int:
        assert self.inbox is not None
        return self.inbox.nbytes

    def wants(self, sender: str, head: Any) -> bool:
        return True

    def heard(self, sender: str, head: Any) -> None:
        pass

    def broke(self, sender: str, head: Any, again: bool) -> None:
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

    def fault(self, bug: BaseException) -> None:
        raise bug


async def murmurate_peer() -> None:
    from murmurate.core.message import Ping
    from murmurate.edge.net.credentials import PLAINTEXT
    from murmurate.edge.net.grpc_transport import GrpcTransport
    from murmurate.edge.net.wire import Hello

    inbox = Inbox()
    ears = Ears("b", inbox)
    transport = GrpcTransport("127.0.0.1:0", credentials=PLAINTEXT)
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
    from murmurate.edge.net.credentials import PLAINTEXT
    from murmurate.edge.net.grpc_transport import GrpcTransport
    from murmurate.edge.net.wire import Hello

    loop = asyncio.get_running_loop()
    ears = Ears("a")
    transport = GrpcTransport("127.0.0.1:0", credentials=PLAINTEXT)
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


class BufferInbox(Inbox):
    """For contenders that receive into a buffer which is there."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = torch.ones(1)
        self.go = threading.Semaphore(0)
        self.over = False

    def prepare(self) -> None:
        if self.buffer.numel() * 4 != self.nbytes:
            self.buffer = torch.ones(self.nbytes // 4)  # there, and touched
        self.go.release()

    def follow(self) -> None:
        super().follow()
        self.over = True
        self.go.release()

    def wait(self) -> bool:
        """Until there is an order; False: there are no more."""
        self.go.acquire()
        return not self.over


def tcp_peer() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    tcp_options(listening)
    say(address="{}:{}".format(*listening.getsockname()))
    inbox = BufferInbox()
    threading.Thread(target=inbox.follow, daemon=True).start()
    sock, _ = listening.accept()
    tcp_options(sock)
    while inbox.wait():
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


# -- torch.distributed ---------------------------------------------------------------------------


def gloo_group(store: str, rank: int) -> Any:
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    return dist


def gloo_peer() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/store"
        say(address=store)
        dist = gloo_group(store, 1)
        inbox, heard = BufferInbox(), torch.ones(1)
        threading.Thread(target=inbox.follow, daemon=True).start()
        while inbox.wait():
            for _ in range(inbox.times):
                dist.recv(inbox.buffer, 0)
                inbox.arrived(inbox.buffer)
                dist.send(heard, 0)


def gloo_origin(address: str) -> None:
    dist, heard = gloo_group(address, 0), torch.zeros(1)
    for order in orders():
        for payload in Outbox(order).rows():
            dist.send(payload, 1)
            dist.recv(heard, 1)


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
    if contender in ("murmurate", "gloo"):
        from murmurate.edge.runtime.malloc import keep_memory

        keep_memory()
    if contender == "murmurate":
        asyncio.run(murmurate_peer() if role == "peer" else murmurate_origin(address))
    elif role == "peer":
        {"tcp": tcp_peer, "gloo": gloo_peer, "unary": unary_peer}[contender]()
    else:
        {"tcp": tcp_origin, "gloo": gloo_origin, "unary": unary_origin}[contender](address)


if __name__ == "__main__":
    play(*sys.argv[1:])

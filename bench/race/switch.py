"""A switch in user space, with a cable of so many milliseconds to each peer: TUN devices in their
namespaces, and this process between them.

    python -m race.switch '{"spaces": ["a", "b"], "addresses": ["10.79.0.1", …], "delay_ms": 20,
                            "bytes_s": 12500000}'

A packet takes `delay_ms` from one peer to the other. What a peer sends is held to the rate by a
token bucket of the kernel (tbf) in its namespace; what it receives, here: one packet after the
other, behind a queue of a tenth of a second. It writes `up`, and goes away with standard input.
"""

from __future__ import annotations

import fcntl
import heapq
import json
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Sequence

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
PACKET_BYTES_MAX = 65535
QUEUE_S = 0.1
DEVICE = "link0"


class Switch:
    """The pure part: which packet leaves when, and to whom."""

    def __init__(self, addresses: Sequence[str], delay_s: float, bytes_s: float) -> None:
        self._of = {bytes(map(int, a.split("."))): port for port, a in enumerate(addresses)}
        self._delay_s, self._bytes_s = delay_s, bytes_s
        self._free_at = [0.0] * len(addresses)
        self._heap: list[tuple[float, int, int, bytes]] = []
        self._number = 0
        self.dropped = 0

    def enter(self, packet: bytes, now: float) -> None:
        port = self._of.get(packet[16:20]) if packet[0] >> 4 == 4 else None
        if port is None:
            return  # of no peer: multicast, IPv6
        begins = max(now + self._delay_s, self._free_at[port])
        if begins - now - self._delay_s > QUEUE_S:
            self.dropped += 1
            return
        self._free_at[port] = begins + len(packet) / self._bytes_s
        self._number += 1
        heapq.heappush(self._heap, (self._free_at[port], self._number, port, packet))

    def leave(self, now: float) -> list[tuple[int, bytes]]:
        out = []
        while self._heap and self._heap[0][0] <= now:
            _, _, port, packet = heapq.heappop(self._heap)
            out.append((port, packet))
        return out

    @property
    def due(self) -> float | None:
        return self._heap[0][0] if self._heap else None


def plug(space: str, address: str, bytes_s: float) -> int:
    """A device in that namespace; its other end is the file."""
    name = f"rc{os.getpid() % 100_000}"
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    rate = f"rate {round(8 * bytes_s)}bit burst 16kb latency 200ms"
    for command in (
        f"ip link set {name} netns {space} name {DEVICE}",
        f"ip -n {space} addr add {address}/24 dev {DEVICE}",
        f"ip -n {space} link set {DEVICE} mtu 1500 txqueuelen 1000 up",
        f"tc -n {space} qdisc add dev {DEVICE} root tbf {rate}",
    ):
        subprocess.run(command.split(), check=True, timeout=10)
    return file


def main() -> None:
    told = json.loads(sys.argv[1])
    switch = Switch(told["addresses"], told["delay_ms"] / 1e3, told["bytes_s"])
    os.nice(-15)  # a cable does not wait for a processor
    pairs = zip(told["spaces"], told["addresses"], strict=True)
    files = [plug(space, address, told["bytes_s"]) for space, address in pairs]
    print("up", flush=True)
    while True:
        now = time.monotonic()
        for port, packet in switch.leave(now):
            try:
                os.write(files[port], packet)
            except BlockingIOError:
                switch.dropped += 1
        due = switch.due
        wait = None if due is None else max(0.0, due - time.monotonic())
        ready, _, _ = select.select([0, *files], [], [], wait)
        if 0 in ready and not os.read(0, 64):
            return
        now = time.monotonic()
        for file in ready[1:] if 0 in ready else ready:
            for _ in range(64):
                try:
                    switch.enter(os.read(file, PACKET_BYTES_MAX), now)
                except BlockingIOError:
                    break


if __name__ == "__main__":
    main()

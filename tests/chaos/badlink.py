"""A bad link in user space: two TUN devices in two namespaces, and this process between them.

Kernels of small machines have no netem. This one needs nothing but /dev/net/tun, and is seeded:
each packet that enters is lost, doubled, held back behind the next ones, or only delayed.

    python -m tests.chaos.badlink '{"spaces": ["a", "b"], "delay_ms": 50, …}'

It writes `up` when the devices are there. On standard input `calm` and `bad` switch the faults off
and on; when it is closed, the link goes away with the process.
"""

from __future__ import annotations

import fcntl
import heapq
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
PACKET_BYTES_MAX = 65535
WAITING_MAX = 20_000
"""Packets on the way; beyond it they are lost, as in any queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """What the link does to packets, each way. Shares from 0 to 1, times in ms."""

    delay_ms: float = 50.0
    jitter_ms: float = 10.0
    loss: float = 0.1
    duplicates: float = 0.05
    reorder: float = 0.1
    """Of the packets, are held back a further `reorder_ms`: later ones overtake them."""
    reorder_ms: float = 20.0
    seed: int = 0


CALM = Weather(delay_ms=0.0, jitter_ms=0.0, loss=0.0, duplicates=0.0, reorder=0.0)


@dataclass(slots=True)
class Link:
    """The pure part: which packet leaves when, on which side."""

    weather: Weather
    rng: random.Random = field(default_factory=random.Random)
    heap: list[tuple[float, int, int, bytes]] = field(default_factory=list)
    number: int = 0
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("in", "lost", "doubled", "held", "out"), 0)
    )
    _last: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def enter(self, side: int, packet: bytes, now: float) -> None:
        weather, rng = self.weather, self.rng
        self.counts["in"] += 1
        if rng.random() < weather.loss or len(self.heap) >= WAITING_MAX:
            self.counts["lost"] += 1
            return
        copies = 1 + (rng.random() < weather.duplicates)
        self.counts["doubled"] += copies - 1
        for _ in range(copies):
            delay_ms = weather.delay_ms + rng.uniform(-1.0, 1.0) * weather.jitter_ms
            at = now + delay_ms / 1e3
            if rng.random() < weather.reorder:
                self.counts["held"] += 1
                at += weather.reorder_ms / 1e3
            else:
                # Jitter alone does not change the order: a queue that is longer now and then.
                at = self._last[side] = max(at, self._last[side])
            self.number += 1
            heapq.heappush(self.heap, (at, self.number, 1 - side, packet))

    def leave(self, now: float) -> list[tuple[int, bytes]]:
        out = []
        while self.heap and self.heap[0][0] <= now:
            _, _, side, packet = heapq.heappop(self.heap)
            out.append((side, packet))
        self.counts["out"] += len(out)
        return out

    @property
    def due(self) -> float | None:
        return self.heap[0][0] if self.heap else None


def open_tun(name: str) -> int:
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return file


def plug(name: str, space: str, address: str, other: str) -> None:
    """Move a device into its namespace. Its file stays here."""
    for command in (
        f"ip link set {name} netns {space}",
        f"ip -n {space} addr add {address} peer {other} dev {name}",
        f"ip -n {space} link set {name} mtu 1500 txqueuelen 1000 up",
    ):
        subprocess.run(command.split(), check=True, timeout=10)


def main() -> None:
    options: dict[str, Any] = json.loads(sys.argv[1])
    spaces, addresses = options.pop("spaces"), options.pop("addresses")
    bad = Weather(**options)
    link = Link(bad, random.Random(bad.seed))
    files = []
    for side in (0, 1):
        name = f"bad{os.getpid() % 100_000}-{side}"
        files.append(open_tun(name))
        plug(name, spaces[side], addresses[side], addresses[1 - side])
    print("up", flush=True)
    while True:
        now = time.monotonic()
        for side, packet in link.leave(now):
            try:
                os.write(files[side], packet)
            except BlockingIOError:
                link.counts["lost"] += 1
        due = link.due
        ready, _, _ = select.select([0, *files], [], [], None if due is None else max(0, due - now))
        if 0 in ready:
            word = os.read(0, 64)
            if not word:
                return
            link.weather = CALM if word.strip() == b"calm" else bad
            print(json.dumps(link.counts), flush=True)
        now = time.monotonic()
        for side in (0, 1):
            if files[side] in ready:
                for _ in range(64):
                    try:
                        link.enter(side, os.read(files[side], PACKET_BYTES_MAX), now)
                    except BlockingIOError:
                        break


if __name__ == "__main__":
    main()

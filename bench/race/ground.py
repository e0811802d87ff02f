"""Where peers are: each in a network namespace of its own, or, without root, all on loopback.

Bytes are counted by the kernel: what each namespace's device has sent, headers and all. On loopback
it is what everybody on the machine has sent, shared out equally.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.chaos.lab import SUBNET, Lab, cannot_net, free_ports, run

from race.contenders import LINK_BYTES_S, LINK_DELAY_MS
from race.switch import DEVICE

HERE = Path(__file__).parents[1]
PORT = 7000
BACKGROUND_S = 600.0


class Ground:
    """A place for so many processes."""

    def __init__(self, folder: Path, count: int, *, narrow: bool) -> None:
        self.count = count
        self.lab: Lab | None = None
        self.spaces: list[str] = []
        problem = cannot_net()
        if problem:
            assert not narrow, f"a narrow link: {problem}"
            self.hosts, self.device = ["127.0.0.1"] * count, "lo"
            self.ports = free_ports(count)
            return
        self.lab = Lab(folder, BACKGROUND_S)
        self.hosts = [f"{SUBNET}.{number + 1}" for number in range(count)]
        self.ports = [PORT] * count
        if narrow:
            self.spaces = [self.lab.namespace(str(number)) for number in range(count)]
            self.device = DEVICE
            self._switch()
        else:
            self.spaces = self.lab.network(count)
            self.device = "eth0"

    def _switch(self) -> None:
        assert self.lab is not None
        told = {
            "spaces": self.spaces,
            "addresses": self.hosts,
            "delay_ms": LINK_DELAY_MS,
            "bytes_s": LINK_BYTES_S,
        }
        switch = subprocess.Popen(
            [sys.executable, "-m", "race.switch", json.dumps(told)],
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.lab.others.append(switch)
        assert switch.stdout is not None
        assert switch.stdout.readline() == b"up\n"

    def within(self, number: int) -> list[str]:
        """The command that goes before one that is to run there."""
        return ["ip", "netns", "exec", self.spaces[number]] if self.spaces else []

    def sent(self) -> list[int]:
        """Bytes that each place has sent so far."""
        path = f"/sys/class/net/{self.device}/statistics/tx_bytes"
        if not self.spaces:
            return [int(Path(path).read_text()) // self.count] * self.count
        return [
            int(
                json.loads(run("ip", "-n", space, "-j", "-s", "link", "show", "dev", self.device))[
                    0
                ]["stats64"]["tx"]["bytes"]
            )
            for space in self.spaces
        ]

    def pids(self) -> list[int]:
        """Everything that runs in the namespaces."""
        out = []
        for space in self.spaces:
            out += [int(pid) for pid in run("ip", "netns", "pids", space, check=False).split()]
        return out

    def close(self) -> None:
        if self.lab is not None:
            self.lab.close()

"""By which address a peer is reached."""

from __future__ import annotations

from typing import Any

import pytest

from murmurate.edge.net.own_address import address_towards


class Probe:
    """A socket on a machine with one network, 10.0.0.0/24, where it is 10.0.0.6."""

    def __init__(self, *_: Any) -> None:
        self.own = ""

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None: ...

    def connect(self, place: tuple[str, int]) -> None:
        if not place[0].startswith("10.0.0."):
            raise OSError("network is unreachable")
        self.own = "10.0.0.6"

    def getsockname(self) -> tuple[str, int]:
        return self.own, 40000


def test_only_a_peer_on_another_machine_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("murmurate.edge.net.own_address.socket.socket", Probe)
    assert address_towards(["127.0.0.1:7000", "localhost:7000", "[::1]:7000"]) is None
    assert address_towards(["10.0.0.5:7000"]) == ("10.0.0.5:7000", "10.0.0.6")
    assert address_towards(["10.0.0.6:7000"]) is None, "that is this machine"
    assert address_towards(["192.0.2.1:7000"]) is None, "no way leads there: it will be said"
    assert address_towards(["127.0.0.1:1", "dns:10.0.0.5:7000"]) == (
        "dns:10.0.0.5:7000",
        "10.0.0.6",
    )
    assert address_towards([]) is None

"""By which address a peer is reached."""

from __future__ import annotations

import pytest

from murmurate.edge.net.own_address import address_towards


def towards(_family: int, _kind: int, _number: int, place: tuple[str, int]) -> str | None:
    """On a machine with one network, 10.0.0.0/24, where it is 10.0.0.6."""
    return "10.0.0.6" if place[0].startswith("10.0.0.") else None


def test_only_a_peer_on_another_machine_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("murmurate.edge.net.own_address.source_towards", towards)
    assert address_towards(["127.0.0.1:7000", "localhost:7000", "[::1]:7000"]) is None
    assert address_towards(["10.0.0.5:7000"]) == ("10.0.0.5:7000", "10.0.0.6")
    assert address_towards(["10.0.0.6:7000"]) is None, "that is this machine"
    assert address_towards(["192.0.2.1:7000"]) is None, "no way leads there: it will be said"
    assert address_towards(["127.0.0.1:1", "dns:10.0.0.5:7000"]) == (
        "dns:10.0.0.5:7000",
        "10.0.0.6",
    )
    assert address_towards([]) is None

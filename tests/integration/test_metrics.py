"""Real nodes over HTTP: what they show adds up, and probes tell the truth."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable

import pytest
import torch
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.integration.flock import Node, flock, train_together, wait_for

from murmurate.edge.net import http
from murmurate.edge.net.credentials import PLAINTEXT
from murmurate.edge.net.http import Page, Pages
from murmurate.errors import ConfigError


def get(address: str | None, path: str) -> tuple[int, str]:
    assert address is not None
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def parsed(text: str) -> dict[str, float]:
    return {
        sample.name.removeprefix("murmurate_")
        + "".join(f"{{{label}={value}}}" for label, value in sample.labels.items()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scraped(node: Node) -> dict[str, float]:
    status, text = get(node.swarm.metrics_address, "/metrics")
    assert status == 200
    return parsed(text)


def test_after_settling_all_sums_are_equal() -> None:
    with flock(3, metrics="127.0.0.1:0") as nodes:
        train_together(nodes, 40)
        shown = [scraped(node) for node in nodes]
        published = [each["updates_published_total"] for each in shown]
        assert min(published) >= 1
        for node, each in zip(nodes, shown, strict=True):
            assert each["updates_applied_total"] == sum(published), "own ones included"
            assert each["staleness_updates_count"] == sum(published)
            assert each["step_seconds_count"] == node.steps
            assert each["samples_total"] == 16 * node.steps
            assert each["lag_updates"] == 0
            assert each["members{state=alive}"] == 3
            report = node.swarm.progress()
            assert each["staleness_updates_sum"] == pytest.approx(
                report.staleness.mean * report.staleness.count
            )
            for name, made in zip(("n0", "n1", "n2"), published, strict=True):
                assert each[f"origin_updates_applied_total{{origin={name}}}"] == made
            sent = sum(
                value for key, value in each.items() if key.startswith("peer_bytes_sent_total")
            )
            assert sent == each["bytes_sent_total{codec=fp32}"] > 0


def test_nodes_with_the_same_updates_are_not_apart() -> None:
    with flock(2, metrics="127.0.0.1:0") as nodes:
        train_together(nodes, 10)
        wait_for(
            lambda: scraped(nodes[0]).get("replica_distance", 1.0) < 1e-5, "sketches of one instant"
        )
        with torch.no_grad():
            nodes[1].swarm.runtime.training.weights.mul_(2.0)  # a replica that broke its promise
        wait_for(lambda: scraped(nodes[0])["replica_distance"] > 0.5, "the break is seen")


def test_probes_follow_the_node_s_life() -> None:
    node = Node("a", metrics="127.0.0.1:0")
    address = node.swarm.metrics_address
    assert get(address, "/livez") == (200, "ok\n")
    assert get(address, "/readyz") == (200, "ok\n")
    assert get(address, "/nothing")[0] == 404
    assert parsed(get(address, "/metrics")[1])["ready"] == 1
    node.swarm.going()
    assert get(address, "/readyz")[0] == 503
    assert get(address, "/livez")[0] == 200
    node.swarm.runtime.training.fail(RuntimeError("lost"))
    assert get(address, "/livez")[0] == 503
    node.swarm.leave(timeout_s=0.0)  # what failed would be raised by a step, or a wait
    with pytest.raises(urllib.error.URLError):
        get(address, "/livez")


def test_a_joining_node_is_alive_and_not_ready() -> None:
    """Its probes answer before it has found the swarm."""
    with socket.socket() as nobody:  # takes calls and says nothing
        nobody.bind(("127.0.0.1", 0))
        nobody.listen()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        seen: list[tuple[int, int]] = []

        def ask() -> None:
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline and not seen:
                try:
                    live = get(f"127.0.0.1:{port}", "/livez")[0]
                    seen.append((live, get(f"127.0.0.1:{port}", "/readyz")[0]))
                except OSError:
                    time.sleep(0.02)

        asking = threading.Thread(target=ask)
        asking.start()
        with pytest.raises(Exception, match="127"):
            Node(
                "b",
                peers=[f"127.0.0.1:{nobody.getsockname()[1]}"],
                metrics=f"127.0.0.1:{port}",
                join_timeout_s=2.0,
            )
        asking.join()
    assert seen == [(200, 503)]


def test_a_port_that_is_taken_is_named() -> None:
    with Node("a", metrics="127.0.0.1:0").swarm as swarm:
        with pytest.raises(ConfigError, match=f"metrics {swarm.metrics_address}: cannot listen"):
            Node("b", peers=[swarm.address], metrics=swarm.metrics_address)
        with pytest.raises(ConfigError, match="host:port"):
            Node("b", peers=[swarm.address], metrics="9100")
    with Node("c").swarm as swarm:
        assert swarm.metrics_address is None


def test_a_registry_of_one_s_own() -> None:
    with Node("a").swarm as swarm:
        registry = CollectorRegistry()
        swarm.export(registry)
        assert parsed(generate_latest(registry).decode())["parameters"] == 81


# -- the little HTTP ------------------------------------------------------------------------------


def serving(talk: Callable[[str, int], Awaitable[None]]) -> None:
    async def run() -> None:
        pages = Pages(
            "127.0.0.1:0", {"/": lambda headers: Page(json.dumps(headers).encode())}, PLAINTEXT
        )
        await pages.start()
        host, _, port = pages.address.rpartition(":")
        try:
            await talk(host, int(port))
        finally:
            await pages.stop()

    asyncio.run(run())


async def said(host: str, port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(data)
    try:
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    ("request_", "first"),
    [
        (b"GET / HTTP/1.1\r\nAccept: text/html\r\n\r\n", b"HTTP/1.1 200 OK"),
        (b"GET /?a=1 HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK"),
        (b"POST / HTTP/1.1\r\n\r\n", b"HTTP/1.1 405 Method Not Allowed"),
        (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", b"HTTP/1.1 404 Not Found"),
        (b"\x16\x03\x01\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000, b"HTTP/1.1 431 Request"),
    ],
)
def test_what_is_asked_and_answered(request_: bytes, first: bytes) -> None:
    async def talk(host: str, port: int) -> None:
        answer = await said(host, port, request_)
        assert answer.startswith(first)
        if b" 200 " in first and b"Accept" in request_:
            assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"accept": "text/html"}

    serving(talk)


def test_head_has_no_body() -> None:
    async def talk(host: str, port: int) -> None:
        answer = await said(host, port, b"HEAD / HTTP/1.1\r\n\r\n")
        assert b"Content-Length: 2\r\n" in answer
        assert answer.endswith(b"\r\n\r\n")

    serving(talk)


def test_who_says_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "READ_S", 0.1)

    async def talk(host: str, port: int) -> None:
        assert await said(host, port, b"GET / HT") == b""

    serving(talk)


def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 2)

    async def talk(host: str, port: int) -> None:
        held = [await asyncio.open_connection(host, port) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert await said(host, port, b"") == b""
        for _, writer in held:
            writer.close()
            await writer.wait_closed()
        while not (await said(host, port, b"GET / HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200"):
            await asyncio.sleep(0.01)

    serving(talk)


def test_stopping_ends_open_connections() -> None:
    async def run() -> None:
        pages = Pages("127.0.0.1:0", {}, PLAINTEXT)
        await pages.start()
        host, _, port = pages.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        await asyncio.sleep(0.05)
        async with asyncio.timeout(3):
            await pages.stop()
            assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()

    asyncio.run(run())

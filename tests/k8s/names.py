"""A name server for a few pods: what the cluster's would answer for their services.

It binds port 53 of an address of its own, so that the resolver of the system under test can use it,
without a word to the program.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Mapping

A, SRV = 1, 33
DOMAIN = "murmurate.svc.cluster.local"
NOT_THERE = 3
TTL_S = 1


def encoded(name: str) -> bytes:
    return b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0"


def asked(message: bytes) -> tuple[str, int, int]:
    """The name, its kind, and where the question ends."""
    at, parts = 12, []
    while length := message[at]:
        parts.append(message[at + 1 : at + 1 + length].decode())
        at += 1 + length
    return ".".join(parts).lower(), struct.unpack_from("!H", message, at + 1)[0], at + 5


class Names:
    """Answers for services: all their pods, each pod by name, and their ports (SRV)."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._services: dict[str, tuple[dict[str, str], Mapping[str, int]]] = {}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((host, 53))

    def add(self, service: str, pod: str, address: str, ports: Mapping[str, int]) -> None:
        """A pod more behind a service, ready or not; or the same at another address."""
        pods, _ = self._services.get(service, ({}, {}))
        self._services[service] = ({**pods, pod: address}, ports)

    def remove(self, service: str, pod: str) -> None:
        pods, ports = self._services[service]
        self._services[service] = ({n: at for n, at in pods.items() if n != pod}, ports)

    def start(self) -> None:
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                message, sender = self._socket.recvfrom(4096)
                self._socket.sendto(self.answer(message), sender)
            except OSError:
                return
            except (IndexError, UnicodeDecodeError, struct.error):
                continue  # no question

    def close(self) -> None:
        self._socket.close()

    def answer(self, message: bytes) -> bytes:
        name, kind, end = asked(message)
        found = [
            (each, struct.pack("!HHIH", each, 1, TTL_S, len(data)) + data)
            for each, data in self.records(name)
        ]
        given = [data for each, data in found if each == kind]
        random.shuffle(given)
        flags = 0x8580 | (0 if found else NOT_THERE)
        head = message[:2] + struct.pack("!HHHHH", flags, 1, len(given), 0, 0)
        return head + message[12:end] + b"".join(b"\xc0\x0c" + data for data in given)

    def records(self, name: str) -> list[tuple[int, bytes]]:
        result = []
        for service, (pods, ports) in self._services.copy().items():
            place = f"{service}.{DOMAIN}"
            for pod, address in pods.items():
                if name in (place, f"{pod}.{place}"):
                    result.append((A, socket.inet_aton(address)))
                for port, number in ports.items():
                    if name == f"_{port}._tcp.{place}":
                        data = struct.pack("!HHH", 0, 10, number) + encoded(f"{pod}.{place}")
                        result.append((SRV, data))
        return result

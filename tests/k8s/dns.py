"""A name server of the test's own: what a headless service would answer.

One name, as many addresses as there are pods. It binds port 53 of a loopback address of its own, so
that the resolver of the system under test can use it, without a word to the program.
"""

from __future__ import annotations

import random
import socket
import struct
import threading

A, AAAA = 1, 28
TTL_S = 1


class NameServer:
    """Answers A queries for `name`, with or without search domains behind it, until `close`."""

    def __init__(self, host: str, name: str) -> None:
        self.host = host
        self.name = name.lower()
        self.asked = 0
        self._addresses: list[str] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((host, 53))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def publish(self, address: str) -> None:
        self._addresses = [*self._addresses, address]

    def withdraw(self, address: str) -> None:
        self._addresses = [each for each in self._addresses if each != address]

    def close(self) -> None:
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                query, sender = self._socket.recvfrom(512)
                self._socket.sendto(self._answer(query), sender)
            except OSError:
                return
            except (IndexError, struct.error):
                continue

    def _answer(self, query: bytes) -> bytes:
        labels, at = [], 12
        while length := query[at]:
            labels.append(query[at + 1 : at + 1 + length].decode("ascii", "replace").lower())
            at += 1 + length
        question = query[12 : at + 5]
        kind = struct.unpack(">H", query[at + 1 : at + 3])[0]
        self.asked += 1
        found = self._addresses if ".".join(labels) == self.name else []
        known = bool(found)
        records = list(found) if kind == A else []
        random.shuffle(records)
        code = 0 if known else 3  # NXDOMAIN, as for a service without pods
        body = b"".join(
            b"\xc0\x0c" + struct.pack(">HHIH", A, 1, TTL_S, 4) + socket.inet_aton(each)
            for each in records
        )
        head = query[:2] + struct.pack(">HHHHH", 0x8580 | code, 1, len(records), 0, 0)
        return head + question + body

"""How long a bare TCP transfer of so many bytes takes on this machine, beside what runs on it.

    python -m tests.chaos.bare BYTES REPEATS

Two processes, loopback, one connection each time: from `connect` until the last byte is in memory
of its own at the receiver, which is what a newcomer ends with too. Prints seconds, one per line.
"""

from __future__ import annotations

import os
import socket
import sys
import time

PIECE_BYTES = 1 << 20


def give(listener: socket.socket, payload: bytearray, repeats: int) -> None:
    for _ in range(repeats):
        connection, _ = listener.accept()
        with connection:
            connection.sendall(payload)


def take(address: tuple[str, int], size: int) -> float:
    began = time.monotonic()
    into = memoryview(bytearray(size))
    with socket.create_connection(address) as connection:
        at = 0
        while at < size:
            count = connection.recv_into(into[at : at + PIECE_BYTES])
            if not count:
                raise ConnectionError(f"{at} of {size} bytes")
            at += count
    return time.monotonic() - began


def main() -> None:
    size, repeats = int(sys.argv[1]), int(sys.argv[2])
    listener = socket.create_server(("127.0.0.1", 0))
    child = os.fork()
    if not child:
        payload = bytearray(size)
        payload[::4096] = b"\1" * len(range(0, size, 4096))
        give(listener, payload, repeats)
        os._exit(0)
    for _ in range(repeats):
        print(f"{take(listener.getsockname(), size):.6f}", flush=True)
    os.waitpid(child, 0)


if __name__ == "__main__":
    main()

"""Chromium without a window, driven over its debugging pipe: no package is needed for it."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WAIT_S = 60.0


def program() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """One page. `console` has what it said there, errors included."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._text = b""
        self._number = 0
        self._session = ""
        self.console: list[str] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + WAIT_S
        while True:
            answer = self._next(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self._heard(answer)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._text:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser ended"
            self._text += part
        line, _, self._text = self._text.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _heard(self, event: dict[str, Any]) -> None:
        match event.get("method"):
            case "Runtime.consoleAPICalled":
                self.console.append(json.dumps(event["params"]["args"]))
            case "Runtime.exceptionThrown":
                self.console.append(json.dumps(event["params"]["exceptionDetails"]))
            case "Log.entryAdded":
                self.console.append(event["params"]["entry"]["text"])

    def open(self, width: int = 1200, height: int = 900) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.size(width, height)

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.call("Emulation.setScrollbarsHidden", hidden=True)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def go(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def js(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, expression: str, timeout_s: float = WAIT_S) -> float:
        """Seconds until it was true."""
        began = time.monotonic()
        while not self.js(expression):
            assert time.monotonic() < began + timeout_s, f"{expression}: not in {timeout_s} s"
            time.sleep(0.02)
        return time.monotonic() - began

    def picture(self, file: Path) -> None:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    name = program()
    assert name is not None
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    words = [name, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    words += ["--disable-dev-shm-usage", "--disable-background-networking"]
    words += ["--remote-debugging-pipe", f"--user-data-dir={folder / 'profile'}", "about:blank"]
    # The pipe is on descriptors 3 and 4: a shell puts it there.
    shell = ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{from_write}', "_", *words]
    process = subprocess.Popen(
        shell,
        pass_fds=(to_read, from_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(folder)},
    )
    os.close(to_read)
    os.close(from_write)
    try:
        page = Browser(to_write, from_read)
        page.open()
        yield page
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(to_write)
        os.close(from_read)

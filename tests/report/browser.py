"""A real headless Chromium, driven by its DevTools protocol over a pair of pipes: no port, no other package.

with Browser.start() as browser:
    page = browser.open("file:///…/index.html")
    page.evaluate("document.title")
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
SECONDS = 60.0  # a loaded machine starts a browser slowly


def find_browser() -> str | None:
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class Browser:
    def __init__(self, process: subprocess.Popen[bytes], requests: int, answers: int):
        self._process, self._requests, self._answers = process, requests, answers
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    @classmethod
    @contextlib.contextmanager
    def start(cls) -> Iterator[Browser]:
        program = find_browser()
        assert program is not None, "no Chromium here; Debian's package is chromium-headless-shell"
        requests_end, requests = _pipe()
        answers, answers_end = _pipe()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
            options += ["--hide-scrollbars", f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
            # The browser reads requests from descriptor 3 and writes answers to 4.
            shell = f'exec "$0" "$@" 3<&{requests_end} 4>&{answers_end}'
            process = subprocess.Popen(
                ["bash", "-c", shell, program, *options],
                pass_fds=(requests_end, answers_end),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            os.close(requests_end)
            os.close(answers_end)
            try:
                yield cls(process, requests, answers)
            finally:
                process.kill()
                process.wait()
                os.close(requests)
                os.close(answers)

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        request = {"id": self._number, "method": method, "params": parameters}
        os.write(self._requests, json.dumps(request | ({"sessionId": session} if session else {})).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer["error"]
        result: dict[str, Any] = answer["result"]
        return result

    def drain(self) -> None:
        """Reads the events that have arrived."""
        self.call("Browser.getVersion")

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            piece = os.read(self._answers, 1 << 20)
            assert piece, f"the browser is gone, exit code {self._process.poll()}"
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def open(self, url: str, *, width: int = 1200, height: int = 900, dark: bool = False) -> Page:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        page.call("Page.navigate", url=url)
        page.wait("document.readyState === 'complete'")
        return page


def _pipe() -> tuple[int, int]:
    """A pipe whose descriptors are above 9, so that they do not collide with the browser's 3 and 4."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


class Page:
    def __init__(self, browser: Browser, session: str):
        self._browser, self._session = browser, session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not self.evaluate(condition):
            assert time.monotonic() < deadline, f"it never came true that {condition}"
            time.sleep(0.02)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": " "} if key == " " and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code="Space" if key == " " else key, **text)

    def move(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def complaints(self) -> list[str]:
        """Errors and warnings in the console, exceptions, and requests for anything but the page itself."""
        self._browser.drain()
        found = []
        for event in self._browser.events:
            if event.get("sessionId") != self._session:
                continue
            parameters = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(parameters["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
                found.append(str(parameters["args"]))
            elif event["method"] == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                found.append(str(parameters["entry"]))
            elif event["method"] == "Page.javascriptDialogOpening":
                found.append(f"dialog: {parameters['message']}")
        return found

    def requests(self) -> list[str]:
        """The addresses that the page requested, without data URLs."""
        self._browser.drain()
        sent = [event for event in self._browser.events if event["method"] == "Network.requestWillBeSent"]
        own = [event["params"]["request"]["url"] for event in sent if event.get("sessionId") == self._session]
        return [url for url in own if not url.startswith("data:")]

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        content = self.call("Page.captureScreenshot", captureBeyondViewport=whole, **(self._clip() if whole else {}))
        path.write_bytes(base64.b64decode(content["data"]))

    def _clip(self) -> dict[str, Any]:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

"""Drives a headless Chromium by the DevTools protocol over pipes: no port, no further package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ANSWER_S = 60.0
AS_3_AND_4 = """
import os, sys
# Duplicated to high numbers first: one of them may be 3 or 4 itself.
reads, writes = os.dup2(int(sys.argv[1]), 103), os.dup2(int(sys.argv[2]), 104)
os.dup2(reads, 3)
os.dup2(writes, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""Chromium reads messages from file descriptor 3, and writes to 4."""


def program() -> str | None:
    """The browser of this machine; None if there is none."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Chromium:
    """A browser with one page at a time."""

    def __init__(self, profile: Path) -> None:
        command = [
            str(program()),
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-extensions",
            "--disable-background-networking",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        to_read, self._writes = os.pipe()
        self._reads, to_write = os.pipe()

        self._process = subprocess.Popen(
            [sys.executable, "-c", AS_3_AND_4, str(to_read), str(to_write), *command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(to_read, to_write),
            start_new_session=True,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Chromium:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.call("Browser.close", browser=True)
            self._process.wait(10)
        except (TimeoutError, OSError, subprocess.TimeoutExpired):
            os.killpg(self._process.pid, 9)
            self._process.wait(10)
        os.close(self._writes)
        os.close(self._reads)

    def open(self, width: int, height: int, *, dark: bool = False, touch: bool = False) -> None:
        """A new page of a size in CSS pixels."""
        target = self.call("Target.createTarget", browser=True, url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", browser=True, targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": touch}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()

    def go(self, url: str) -> None:
        """Load a page, and wait until it has loaded."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        self.wait_for("Page.loadEventFired")

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise AssertionError(found["exceptionDetails"])
        return found["result"].get("value")

    def first_paint_ms(self) -> float:
        """From the start of the navigation to the first paint with content."""
        script = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline:
            if found := self.evaluate(script):
                return float(found)
        raise TimeoutError("nothing was painted")

    def press(self, key: str) -> None:
        """Press a key, such as Tab, Enter or ArrowLeft."""
        codes = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39, " ": 32}
        text = {"Enter": "\r", " ": " "}.get(key)
        event = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        self.call("Input.dispatchKeyEvent", type="keyDown", **event, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def screenshot(self, file: Path, *, whole: bool = False) -> None:
        """Write what is seen, or the whole page, as a PNG."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(found["data"]))

    def logged_errors(self) -> list[str]:
        """What the page logged as an error: exceptions, refused resources, violations of the policy."""
        texts = []
        for event in self.events:
            if event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] in (
                "error",
                "warning",
            ):
                texts.append(event["params"]["entry"]["text"])
            elif event["method"] == "Runtime.exceptionThrown":
                texts.append(str(event["params"]["exceptionDetails"]))
        return texts

    def requested(self) -> list[str]:
        """The addresses that the page has requested."""
        found = (each["params"] for each in self.events if each["method"] == "Network.requestWillBeSent")
        return [each["request"]["url"] for each in found]

    def call(self, method: str, *, browser: bool = False, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if not browser:
            message["sessionId"] = self._session
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_S
        while True:
            answer = self._read(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self.events.append(answer)

    def wait_for(self, method: str) -> None:
        """Wait for an event."""
        deadline = time.monotonic() + ANSWER_S
        while not any(each.get("method") == method for each in self.events):
            self.events.append(self._read(deadline))

    def _read(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._reads], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("Chromium does not answer")
            data = os.read(self._reads, 1 << 16)
            if not data:
                raise OSError("Chromium has ended")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

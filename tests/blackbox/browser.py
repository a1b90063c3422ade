"""A headless Chromium, driven by the DevTools protocol over a pipe: no port, no other package.

https://chromedevtools.github.io/devtools-protocol/ names the commands and events.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars",
)  # fmt: skip


def chromium() -> str | None:
    """The browser's program, where there is one."""
    found = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    return next((path for path in found if path), None)


class Page:
    """One tab. ``events`` are those of the protocol, in their order."""

    def __init__(self, program: str) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        # The browser reads commands from descriptor 3 and writes to 4. Not every sh knows numbers
        # of two digits.
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", program, *FLAGS,
             "--remote-debugging-pipe", f"--user-data-dir={self._profile.name}", "about:blank"],
            pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = os.fdopen(ours_in, "rb", 0), os.fdopen(ours_out, "wb", 0)
        self._pending = b""
        self._turn = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        tabs = self.call("Target.getTargets")["targetInfos"]
        tab = next(info["targetId"] for info in tabs if info["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=tab, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)
        self._in.close()
        self._out.close()
        self._profile.cleanup()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command."""
        self._turn += 1
        message: dict[str, Any] = {"id": self._turn, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._turn:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            more = self._in.read(1 << 16)
            assert more, "the browser has gone"
            self._pending += more
        line, _, self._pending = self._pending.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def open(self, path: Path, width: int, *, dark: bool = False) -> None:
        """Load a file in a window of some width, and wait until it has loaded."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=844,
                  deviceScaleFactor=1, mobile=width < 600)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self._receive())

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        return self.call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get(
            "value"
        )

    def of(self, method: str) -> list[dict[str, Any]]:
        """The parameters of all events of a kind since the page was opened."""
        return [event["params"] for event in self.events if event.get("method") == method]

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

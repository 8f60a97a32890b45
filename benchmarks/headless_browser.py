"""A real headless Chromium, driven by its own DevTools protocol over a pipe; tests of the page use it as well.

The protocol answers exactly what they ask (requests, console, emulated media, keys, print, paint), needs nothing but
the browser that a distribution ships, and no driver whose version must fit the browser's.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip
_TIMEOUT_S = 30


def find_chromium() -> str | None:
    """The path of an installed Chromium; None where there is none."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """A running browser. Messages are JSON that ends in a zero byte, on file descriptors 3 and 4 of its process."""

    def __init__(self, executable: str, profile: Path) -> None:
        ends = [*os.pipe(), *os.pipe()]
        # Above 3 and 4, so that none is closed by the other's taking its place.
        to_browser, self._write, self._read, from_browser = (
            fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends
        )
        for end in ends:
            os.close(end)
        quiet = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
        pipes = [(os.POSIX_SPAWN_DUP2, to_browser, 3), (os.POSIX_SPAWN_DUP2, from_browser, 4)]
        command = [executable, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._pid = os.posix_spawn(executable, command, os.environ, file_actions=[*quiet, *pipes])
        os.close(to_browser)
        os.close(from_browser)
        self._number = 0
        self._unread = b""
        self.events: deque[dict[str, Any]] = deque()

    def send(self, method: str, session: str | None = None, /, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and wait for what it returns."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        self._write_all(json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            answer = self._next_message(deadline)
            if answer is None:
                raise TimeoutError(f"the browser did not answer {method}")
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _write_all(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._write, data) :]

    def _next_message(self, deadline: float) -> dict[str, Any] | None:
        """The next message; None when none comes in time."""
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._read], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                return None
            more = os.read(self._read, 1 << 16)
            if not more:
                raise EOFError("the browser has ended")
            self._unread += more
        text, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def open(
        self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False, script: bool = True
    ) -> Page:
        """A new tab with a file from disk, once it has loaded and its script has started."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.send(f"{domain}.enable")
        page.resize(width, height)
        page.emulate("dark" if dark else "light")
        page.send("Emulation.setScriptExecutionDisabled", value=not script)
        page.send("Page.navigate", url=path.resolve().as_uri())
        page.wait_for("document.readyState === 'complete'")
        if script:
            page.wait_for("document.documentElement.dataset.ready === 'yes'")
        return page

    def close(self) -> None:
        """End the browser."""
        with suppress(OSError, EOFError, TimeoutError):
            self.send("Browser.close")
        os.close(self._write)
        os.close(self._read)
        deadline = time.monotonic() + _TIMEOUT_S
        while os.waitpid(self._pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
                break
            time.sleep(0.05)


class Page:
    """A tab."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser = browser
        self._session = session
        self._target = target

    def send(self, method: str, /, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol on this tab."""
        return self._browser.send(method, self._session, **parameters)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript; a promise is awaited."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, expression: str, timeout_s: float = _TIMEOUT_S) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + timeout_s
        while not self.evaluate(expression):
            if time.monotonic() > deadline:
                raise TimeoutError(f"never true: {expression}")
            time.sleep(0.02)

    def frames(self, count: int = 3) -> None:
        """Wait for some frames to be drawn."""
        self.evaluate(
            f"new Promise(done => {{ let n = {count}; const f = () => n-- ? requestAnimationFrame(f) : done(); f(); }})"
        )

    def show(self, selector: str) -> None:
        """Scroll to an element, and wait for what is drawn when it comes into sight.

        What is within a chart is not there before: the first part of the selector is shown first.
        """
        for part in dict.fromkeys((selector.split(" ")[0], selector)):
            self.evaluate(f"document.querySelector({json.dumps(part)}).scrollIntoView({{block: 'center'}})")
            self.frames(6)

    def resize(self, width: int, height: int) -> None:
        """Make the window so large, in CSS pixels."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def emulate(self, scheme: str, media: str = "") -> None:
        """Prefer "light" or "dark", on a screen or on "print"."""
        self.send(
            "Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": scheme}]
        )

    def centre(self, selector: str) -> tuple[float, float]:
        """The middle of an element in the window."""
        box = self.evaluate(
            f"(() => {{ const b = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
            "return [b.left + b.width / 2, b.top + b.height / 2]; })()"
        )
        return box[0], box[1]

    def click(self, selector: str) -> None:
        """Click the middle of an element."""
        self.show(selector)
        self.click_at(*self.centre(selector))

    def click_at(self, x: float, y: float) -> None:
        """Click a point of the window."""
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """An event of the mouse at a point of the window."""
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Press the button at one point, and let it go at another."""
        self.mouse("mousePressed", *start, button="left", buttons=1, clickCount=1)
        for part in (0.3, 0.6, 1.0):
            x, y = (a + part * (b - a) for a, b in zip(start, end, strict=True))
            self.mouse("mouseMoved", x, y, button="left", buttons=1)
        self.mouse("mouseReleased", *end, button="left", clickCount=1)

    def wheel(self, x: float, y: float, delta_y: float, modifiers: int = 0) -> None:
        """Turn the wheel at a point; modifier 2 is Ctrl."""
        self.mouse("mouseWheel", x, y, deltaX=0, deltaY=delta_y, modifiers=modifiers)

    def press(self, key: str, text: str = "", modifiers: int = 0) -> None:
        """Press and release a key; 8 is Shift."""
        code = {
            "Enter": 13,
            "Escape": 27,
            "Tab": 9,
            "ArrowLeft": 37,
            "ArrowUp": 38,
            "ArrowRight": 39,
            "ArrowDown": 40,
            " ": 32,
        }
        more = {"key": key, "windowsVirtualKeyCode": code.get(key, 0), "modifiers": modifiers}
        text = text or {"Enter": "\r", " ": " "}.get(key, key if len(key) == 1 else "")
        self.send("Input.dispatchKeyEvent", type="keyDown", **more, **({"text": text} if text else {}))
        self.send("Input.dispatchKeyEvent", type="keyUp", **more)

    def type(self, text: str) -> None:
        """Type a text into what has the focus."""
        self.send("Input.insertText", text=text)

    def screenshot(self, path: Path, *, whole: bool = False) -> Path:
        """Write what is seen, or the whole page, as PNG."""
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))
        return path

    def print_pdf(self) -> bytes:
        """The page on A4."""
        answer = self.send("Page.printToPDF", printBackground=False, paperWidth=8.27, paperHeight=11.69)
        return base64.b64decode(answer["data"])

    def events(self, *methods: str) -> list[dict[str, Any]]:
        """The parameters of the events of these kinds on this tab so far."""
        return [
            event["params"]
            for event in self._browser.events
            if event.get("sessionId") == self._session and event["method"] in methods
        ]

    def complaints(self) -> list[str]:
        """What the console holds: errors, warnings, exceptions, and what the page's policy forbade."""
        found = [
            str(each["entry"]["text"]) for each in self.events("Log.entryAdded") if each["entry"]["level"] != "verbose"
        ]
        found += [str(each["args"]) for each in self.events("Runtime.consoleAPICalled")]
        found += [str(each["exceptionDetails"]) for each in self.events("Runtime.exceptionThrown")]
        return found

    def requests(self) -> list[str]:
        """The addresses that the page asked for, itself among them."""
        return [str(each["request"]["url"]) for each in self.events("Network.requestWillBeSent")]

    def close(self) -> None:
        """Close the tab."""
        self._browser.send("Target.closeTarget", targetId=self._target)

"""Headless Chromium, driven through its DevTools protocol."""

import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
KEYS = {"Tab": 9, "Enter": 13, " ": 32}


class Browser:
    """A page of a browser; requests: URLs that it has requested. errors: messages in its console."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection, self.sent = connection, 0
        self.requests: list[str] = []
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.do(f"{domain}.enable")

    def do(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a DevTools command and return its result."""
        self.sent += 1
        self.connection.send(json.dumps({"id": self.sent, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.connection.recv(30))
            if message.get("id") == self.sent:
                assert "error" not in message, message
                return message["result"]
            self._note(message.get("method"), message.get("params", {}))

    def _note(self, event: str | None, about: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif event == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.errors.append(about["entry"]["text"])
        elif event == "Runtime.exceptionThrown":
            self.errors.append(str(about["exceptionDetails"]))

    def open(self, url: str) -> None:
        """Open a URL and wait until it is loaded."""
        self.do("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """Evaluate a JavaScript expression on the page."""
        found = self.do("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str, seconds: float = 20) -> Any:
        """Wait until an expression is true and return its value."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if found := self.value(expression):
                return found
            time.sleep(0.05)
        raise AssertionError(f"never true: {expression}; the page says {self.value('document.body.innerText')!r}")

    def key(self, name: str) -> None:
        """Press a key."""
        about = {"key": name, "code": name, "windowsVirtualKeyCode": KEYS[name],
                 **({"text": "\r"} if name == "Enter" else {"text": " "} if name == " " else {})}
        self.do("Input.dispatchKeyEvent", type="keyDown", **about)
        self.do("Input.dispatchKeyEvent", type="keyUp", **about)

    def type(self, text: str) -> None:
        """Enter a text into the focused element."""
        self.do("Input.insertText", text=text)

    def pasted(self) -> str:
        """Return the clipboard's text, by pasting it into a temporary field."""
        self.value("document.body.append(Object.assign(document.createElement('textarea'), {id: 'pasted'}))")
        self.value("document.getElementById('pasted').focus()")
        self.do("Input.dispatchKeyEvent", type="keyDown", key="v", code="KeyV", modifiers=2, commands=["paste"])
        text = str(self.until("document.getElementById('pasted').value"))
        self.value("document.getElementById('pasted').remove()")
        return text

    def resize(self, width: int, dark: bool = False) -> None:
        """Set the width of the window in CSS pixels, and its colour scheme."""
        self.do("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        self.do("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])


@contextmanager
def browser() -> Iterator[Browser]:
    """Start Chromium and yield its page."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions",
             "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
             f"--user-data-dir={folder}", "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            opened = Path(folder) / "DevToolsActivePort"
            deadline = time.monotonic() + 60
            while not (opened.exists() and opened.read_text().strip()) and time.monotonic() < deadline:
                time.sleep(0.1)
            port = opened.read_text().split()[0]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=30) as answer:
                [page] = [each for each in json.load(answer) if each["type"] == "page"]
            with connect(page["webSocketDebuggerUrl"], max_size=None, proxy=None) as connection:
                yield Browser(connection)
        finally:
            process.terminate()
            process.wait(30)

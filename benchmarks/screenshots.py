"""A report in headless Chromium, as wide as a desk or a phone, light or dark: pictures for the documents.

    for seed in 1 12 123; do briee train lock --horizon 6 --seed $seed --run-dir runs/lock-s$seed; done
    briee report runs --output report.html
    python benchmarks/screenshots.py report.html docs/images

The widths are those of an emulated device: a window of Chromium is never narrower than 500 pixels. The
browser is driven through pipes, so nothing but Chromium is needed.
"""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

DESK, PHONE = 1200, 390


def find_browser() -> str | None:
    """The path of Chromium or Chrome, if there is one."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One page in a headless browser."""

    def __init__(self, program: str):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.errors: list[str] = []
        self.number = 0
        (read, child_write), (child_read, write) = os.pipe(), os.pipe()

        flags = ("headless=new", "no-sandbox", "disable-gpu", "hide-scrollbars", "no-first-run",
                 "disable-sync", "disable-background-networking", "disable-component-update",
                 "remote-debugging-pipe")  # fmt: skip
        ends = tuple(fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (child_read, child_write))
        script = 'exec "$@" 3</dev/fd/{} 4>/dev/fd/{}'.format(*ends)  # where the browser reads and writes
        options = [*(f"--{flag}" for flag in flags), f"--user-data-dir={self.folder.name}"]
        quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        command = ["sh", "-c", script, "sh", program, *options]
        self.process = subprocess.Popen(command, pass_fds=ends, **quiet)
        for end in ends:
            os.close(end)
        os.close(child_read)
        os.close(child_write)
        self.reader, self.writer = os.fdopen(read, "rb"), os.fdopen(write, "wb")
        self.session = ""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.wait()
        self.reader.close()
        self.writer.close()
        self.folder.cleanup()

    def send(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Call a method of the Chrome DevTools protocol; errors of the page are collected meanwhile."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": arguments}
        message |= {"sessionId": self.session} if self.session else {}
        self.writer.write(json.dumps(message).encode() + b"\0")
        self.writer.flush()
        while True:
            answer = self._read()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.errors.append(json.dumps(answer["params"]))

    def _read(self) -> dict[str, Any]:
        letters = bytearray()
        while (letter := self.reader.read(1)) != b"\0":
            if not letter:
                raise RuntimeError("the browser has ended")
            letters += letter
        return json.loads(letters)

    def open(self, page: Path, width: int, scheme: str, height: int = 900) -> None:
        """Open a report and wait until its figures are drawn."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1}
        self.send("Emulation.setDeviceMetricsOverride", **size, mobile=width < 600)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.send("Page.navigate", url=page.resolve().as_uri())
        end = time.monotonic() + 60
        while self.run("document.documentElement.dataset.drawn") != "yes":
            if time.monotonic() > end:
                raise RuntimeError(f"the figures of {page} were not drawn within a minute: {self.errors}")
            time.sleep(0.1)

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        return self.send("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def hover(self, x: float, y: float) -> None:
        """Move the mouse to a point of the window."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        time.sleep(0.3)

    def shoot(self, path: Path, height: int | None = None) -> None:
        """Write a picture of the page, of its whole height unless one is given."""
        width = self.run("document.documentElement.clientWidth")
        height = height or self.run("document.documentElement.scrollHeight")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        found = self.send("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(found["data"]))


def main(page: str, folder: str) -> int:
    """Write report.png, report-dark.png and report-phone.png; returns the exit code."""
    program = find_browser()
    if program is None:
        print("no browser found: install Chromium from the system's packages")
        return 2
    with Browser(program) as browser:
        for name, width, scheme, height in (
            ("report", DESK, "light", 3300),
            ("report-dark", DESK, "dark", 2200),
            ("report-phone", PHONE, "light", 2400),
        ):
            browser.open(Path(page), width, scheme)
            browser.shoot(Path(folder) / f"{name}.png", height)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

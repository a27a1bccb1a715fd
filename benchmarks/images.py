"""Images of the documents: observations of every emission, and a report in headless Chromium.

    python benchmarks/images.py emissions docs/images
    for seed in 1 12 123; do briee train lock --horizon 6 --seed $seed --run-dir runs/lock-s$seed; done
    briee report runs --output report.html
    python benchmarks/images.py report docs/images report.html

The widths of the report are those of an emulated device: a window of Chromium is never narrower than 500
pixels. The browser is driven through pipes, so nothing but Chromium is needed.
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

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from briee import envs
from briee.envs.emission import IMAGES, KINDS

DESK, PHONE = 1200, 390
SAMPLES = 80
COLOURS = ("#3f7fd1", "#2f9e77", "#8a8a8a")
WORLDS: dict[str, dict[str, Any]] = {kind: {"emission": kind} for kind in KINDS} | {
    "exogenous": {"exogenous": 17},
    "heavy tails": {"degrees_of_freedom": 2.5, "noise": 0.08},
}


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


def draw_report(folder: Path, page: Path) -> int:
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
            browser.open(page, width, scheme)
            browser.shoot(folder / f"{name}.png", height)
    return 0


def observations(arguments: dict[str, Any]) -> np.ndarray:
    """f32[3, SAMPLES, ...]: observations of the latent states at level 2."""
    pure = envs.make("lock", horizon=8, num_actions=5, instance_seed=1, **arguments)
    keys = jax.random.split(jax.random.key(0), (3, SAMPLES))
    emit = jax.vmap(jax.vmap(pure.emit, (None, None, 0)), (0, None, 0))
    return np.asarray(jax.jit(emit)(jnp.arange(3), jnp.int32(2), keys))


def draw_emissions(folder: Path) -> int:
    """Write emissions.png: images as they are, vectors by their two first principal components."""
    figure = Figure(figsize=(10, 7.5), layout="constrained")
    panels = np.ravel(np.asarray(figure.subfigures(3, 3)))
    for panel, (name, arguments) in zip(panels, WORLDS.items(), strict=True):
        rows = observations(arguments)
        panel.suptitle(f"{name}: {' × '.join(map(str, [n for n in rows.shape[2:] if n > 1]))}", fontsize=10)
        if arguments.get("emission") in IMAGES:
            axes = panel.subplots(3, 5)
            for axis, image in zip(axes.ravel(), rows[:, :5].reshape(15, *rows.shape[2:]), strict=True):
                axis.imshow(image[..., 0], cmap="gray_r", vmin=0, vmax=1)
                axis.set_axis_off()
            continue
        axis, flat = panel.subplots(), rows.reshape(3 * SAMPLES, -1)
        centred = flat - np.median(flat, axis=0)
        plane = np.linalg.svd(centred, full_matrices=False)[2][:2]
        for latent, colour in enumerate(COLOURS):
            x, y = plane @ centred.reshape(3, SAMPLES, -1)[latent].T
            axis.plot(x, y, ".", color=colour, markersize=4, label=("good 0", "good 1", "bad")[latent])
        axis.set_xticks([])
        axis.set_yticks([])
    figure.axes[0].legend(fontsize=7, frameon=False)
    figure.savefig(folder / "emissions.png", dpi=90)
    return 0


if __name__ == "__main__":
    draw = {"emissions": draw_emissions, "report": draw_report}[sys.argv[1]]
    sys.exit(draw(*map(Path, sys.argv[2:])))

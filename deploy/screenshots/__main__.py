"""The documentation's pictures: ``python -m deploy.screenshots``. A stack with the simulated engine serves chats
and batches for some minutes; then its dashboard is photographed, and what it shows in a terminal is drawn.

It needs Chromium. Sizes are always the same; the figures are those of the run.
"""

import argparse
import asyncio
import contextlib
import fcntl
import io
import os
import pty
import random
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from PIL import Image
from playwright.sync_api import Browser, Page
from rich.console import Console, RenderableType
from rich.text import Text

from deploy.screenshots.browser import browser
from deploy.screenshots.load import Chats, submit_batches
from services.local.commands.asked_stack import AskedStackOptions
from services.local.commands.status.top import frame

OPTIONS = ("--engine", "sim", "--executors", "2", "--slo", "ttft_p99<=600ms", "--slo", "tbt_mean<=36ms")
COLUMNS, TOP_WIDTH = 164, 134
MAX_COLOURS = 256  # a palette keeps a picture small
WARM_UP_S = 10.0  # of a page, until its curves are drawn and its figures have changed


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture of the dashboard. ``height``: of what is photographed, None for all of the page."""

    name: str
    width: int
    height: int | None
    scheme: str
    scale: float


SHOTS = (
    Shot("dashboard-light", 1440, 1660, "light", 1.25),  # down to the executors
    Shot("dashboard-dark", 1440, None, "dark", 1.25),
    Shot("dashboard-phone", 390, 1500, "light", 2.0),
)


class Up:
    """``slackwater up`` on a terminal of its own."""

    def __init__(self, data_dir: Path, port: int) -> None:
        self.data_dir = data_dir
        self.url = f"http://127.0.0.1:{port}"
        self._said = bytearray()
        self._terminal, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        code = "from services.local.cli import main; main()"
        options = [*OPTIONS, "--port", str(port), "--data-dir", str(data_dir)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, "up", *options], stdin=slave, stdout=subprocess.PIPE, stderr=slave, text=True
        )
        os.close(slave)
        threading.Thread(target=self._listen, daemon=True).start()

    def wait_ready(self) -> str:
        """The line that says so. Raises RuntimeError where it does not start."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise RuntimeError(self._said.decode(errors="replace"))
        return line

    def line_below(self) -> str:
        """What stands below the ready line now, with its colours."""
        redrawn = bytes(self._said).decode(errors="replace").split("\x1b[2K")
        lines = [each.strip("\r\n") for each in redrawn if "serving" in each]
        return lines[-1]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(60)
        os.close(self._terminal)

    def _listen(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while said := os.read(self._terminal, 65536):
                self._said += said


@contextlib.contextmanager
def stack(port: int) -> Iterator[tuple[Up, str]]:
    """A ready one, and its ready line."""
    with tempfile.TemporaryDirectory() as folder:
        up = Up(Path(folder), port)
        try:
            yield up, up.wait_ready()
        finally:
            up.close()


def up_screen(ready: str, line_below: str) -> Text:
    """``line_below`` with a terminal's colours."""
    return Text.assemble(f"$ slackwater up {shlex.join(OPTIONS)}\n{ready}\n", Text.from_ansi(line_below))


def photograph(chrome: Browser, url: str, shot: Shot, folder: Path) -> None:
    page = chrome.new_page(
        viewport={"width": shot.width, "height": shot.height or 1000},
        device_scale_factor=shot.scale,
        color_scheme="dark" if shot.scheme == "dark" else "light",
    )
    page.goto(url)
    page.locator("body[data-state=live]").wait_for()
    _wait_for_curves(page)
    picture = page.screenshot(full_page=shot.height is None)
    with Image.open(io.BytesIO(picture)) as image:
        flat = image.convert("RGB").quantize(MAX_COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        flat.save(folder / f"{shot.name}.png", optimize=True)
    page.close()


def _wait_for_curves(page: Page) -> None:
    page.locator(".plot canvas").last.wait_for()
    page.wait_for_function("() => document.querySelector('.tile .value').textContent !== '–'")
    page.wait_for_timeout(WARM_UP_S * 1e3)


def draw(renderable: RenderableType, title: str, width: int, path: Path) -> None:
    """As a terminal shows it, without a font of another host."""
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(renderable, Text())  # the last line would be cut below its letters
    svg = console.export_svg(title=title)
    while "@font-face" in svg:
        before, _, rest = svg.partition("@font-face")
        svg = before.rstrip() + rest.partition("}")[2]
    path.write_text(svg.replace("Fira Code", "DejaVu Sans Mono"))


async def draw_top(data_dir: Path, folder: Path) -> None:
    async with AskedStackOptions(data_dir=data_dir).opened("top") as stack:
        await asyncio.sleep(WARM_UP_S)
        draw(frame(await stack.report()), "slackwater top", TOP_WIDTH, folder / "top.svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--seconds", type=float, default=330.0, help="of load before the pictures")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with stack(args.port) as (up, ready), httpx.Client(base_url=up.url, timeout=120) as client:
        submit_batches(client)
        with Chats(up.url, random.Random(1)):
            time.sleep(args.seconds)
            asyncio.run(draw_top(up.data_dir, args.out))
            draw(up_screen(ready, up.line_below()), "slackwater up", COLUMNS, args.out / "up.svg")
            with browser() as chrome:
                for shot in SHOTS:
                    photograph(chrome, up.url, shot, args.out)
    for path in sorted(args.out.glob("*.*")):
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()

"""A headless Chromium of this machine, driven by Playwright."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = f"no Chromium on the PATH ({', '.join(NAMES)}); Debian's package is called chromium"
FLAGS = (
    "--no-sandbox",  # it shows our own pages only, and its sandbox does not work for root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--font-render-hinting=none",
)


def chromium() -> str | None:
    """The path of its program; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def browser() -> Iterator[Browser]:
    """A new one. Raises FileNotFoundError where there is no Chromium."""
    path = chromium()
    if path is None:
        raise FileNotFoundError(MISSING)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield launched
        finally:
            launched.close()

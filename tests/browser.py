"""A real browser for the tests of pages: Chromium without a window, driven by Playwright."""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator

from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# Without these it looks for updates and translations, which takes time and leaves messages where there is no network.
QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic")
QUIET += ("--no-first-run", "--disable-gpu")


def find_browser() -> str | None:
    """The Chromium of this machine, if it has one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    """A Chromium that was found on this machine. Ends the program where there is none."""
    program = find_browser()
    if program is None:
        sys.exit("no Chromium on this machine; install your system's package of it")
    is_root = sys.platform == "linux" and os.geteuid() == 0  # to whom Chromium refuses its sandbox
    with sync_playwright() as playwright:
        flags = [*QUIET, "--no-sandbox"] if is_root else [*QUIET]
        browser = playwright.chromium.launch(executable_path=program, args=flags)
        yield browser
        browser.close()


@contextlib.contextmanager
def open_page(browser: Browser, *, is_ours: bool = True, **options: object) -> Iterator[Page]:
    """A page of its own, which where it `is_ours` must be closed without having reported an error or a warning."""
    context = browser.new_context(**options)  # type: ignore[arg-type]
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    yield page
    context.close()
    assert errors == [] or not is_ours

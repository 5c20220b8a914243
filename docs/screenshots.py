"""Take the pictures of README.md anew: a page of visualize.py, and TensorBoard.

Run: python docs/screenshots.py [--run RUN] [--out FOLDER]

Without RUN, the quickstart is trained first, in a folder that is removed at the end. Without FOLDER, the pictures go to
docs/. Needs requirements-dev.txt, and a Chromium.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

from playwright.sync_api import Browser  # noqa: E402 - found by the line above

from tests.browser import open_browser, open_page  # noqa: E402

TEXT = """def __init__(self, name):
    self.name = name
    self.value = None

    def close(self):
        if self.closed:
            return self.name"""
START_SECONDS = 60  # that TensorBoard may take


def run_command(*arguments: object) -> None:
    """One of ours, by this Python."""
    words = [str(word) for word in arguments]
    subprocess.run([sys.executable, str(ROOT / words[0]), *words[1:]], check=True)


def screen(height: int) -> dict[str, object]:
    """A window of a usual width."""
    return {"viewport": {"width": 1280, "height": height}}


def photograph_page(browser: Browser, run: Path, folder: Path, picture: Path) -> None:
    """The page of a text that the quickstart knows the like of."""
    file = folder / "page.html"
    run_command("visualize.py", run, "--text", TEXT, "--out", file)
    with open_page(browser, **screen(830)) as page:
        page.goto(file.as_uri())
        maps = page.locator("#maps button")
        maps.nth(maps.count() // 2 - 2).click()
        page.locator(f'#text > span[data-unit="{TEXT.index("self.value") + 5}"]').click()
        page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
        page.screenshot(path=picture)


def photograph_tensorboard(browser: Browser, run: Path, picture: Path) -> None:
    """The curves of a run, as soon as TensorBoard has drawn them."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", "--logdir", str(run.parent), "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stderr is not None
        port = next(found[1] for line in server.stderr if (found := re.search(r"http://\S+:(\d+)/", line)))
        with open_page(browser, is_ours=False, **screen(620)) as page:
            page.goto(f"http://127.0.0.1:{port}/?tagFilter=loss&smoothing=0#timeseries")
            page.wait_for_selector("scalar-card path", timeout=1000 * START_SECONDS)
            page.get_by_role("button", name="Settings").first.click()  # shuts them
            time.sleep(3)  # the curves grow into their places
            page.screenshot(path=picture)
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    """Both pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a run with tracking.tensorboard=true")
    parser.add_argument("--out", type=Path, metavar="FOLDER", default=DOCS, help="for the pictures (docs/)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, open_browser() as browser:
        run = options.run
        if run is None:
            run = Path(name) / "quickstart"
            run_command("train.py", f"runs_dir={name}", "tracking.tensorboard=true", "train.log_interval=10")
        photograph_page(browser, run, Path(name), options.out / "page.png")
        photograph_tensorboard(browser, run, options.out / "tensorboard.png")


if __name__ == "__main__":
    main()

"""The run on Weights & Biases: off line in the run folder, or on line where there is an account and a network.

A dashboard is a convenience: whatever goes wrong with it is said in one line, and training goes on.
"""

import contextlib
import html
import math
import os
import re
import secrets
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from config.load import config_to_dict
from config.schema import Config
from engine.files import write_text
from engine.history import read_lines, read_samples
from engine.parts import drop, last_sent, parts, unsent
from engine.run_folder import RunFolder
from errors import ConfigError

MODES = {"offline": "offline", "dryrun": "offline", "online": "online", "run": "online", "disabled": "disabled"}
FLUSH_SECONDS = 2.0  # how far `wandb leet` lags behind a running run
PROBE_SECONDS = 4.0  # for the first answer of the server
# How metrics are summed up that are not best known by their last value. val/loss is not among them: its summary must be
# a plain number, which sweeps ask for; its best is told as best/val_loss.
SUMMARIES = {
    "val/bits_per_char": "min",
    "perf/tokens_per_second": "mean",
    "perf/mfu": "mean",
    "perf/memory_mib": "max",
}
RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
ONLINE_SECONDS = 15.0  # for it to accept the run, and later for the last upload


class Summary:
    """What sums the whole run up. wandb itself would take the minima and means of the last process only."""

    def __init__(self) -> None:
        self.sums: dict[str, tuple[int, float]] = {}  # how many values, and what they come to
        self.best: dict[str, float] = {}

    def take(self, step: int, values: Mapping[str, Any]) -> None:
        """Count the values of a step in."""
        for name, how in SUMMARIES.items():
            value = values.get(name)
            if value is not None and math.isfinite(value):
                count, so_far = self.sums.get(name, (0, value))
                mean = so_far + (value - so_far) / (count + 1)
                sums = {"min": min(so_far, value), "max": max(so_far, value), "mean": mean}
                self.sums[name] = (count + 1, sums[how])
        val_loss = values.get("val/loss")
        if val_loss is not None and val_loss < self.best.get("best/val_loss", math.inf):
            self.best = {"best/step": step, "best/val_loss": val_loss}

    def content(self) -> dict[str, Any]:
        """As wandb would write it."""
        return {**self.best, **{name: {SUMMARIES[name]: value} for name, (_, value) in self.sums.items()}}


class Dashboard:
    """What a run reports to Weights & Biases. After a failure, or where it is disabled, it silently does nothing.

    Steps up to `known` are not reported: the server has them, and takes none twice.
    """

    def __init__(self, run: Any, say: Callable[[str], None], *, known: int = -1) -> None:
        self.run = run  # a wandb.Run, or None
        self.say = say
        self.known = known
        self.summary = Summary()

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Report the values of a step, under our own count of steps, which is the x axis everywhere."""
        self.report(step, values)
        if "val/loss" in values:
            self.sum_up()

    def report(self, step: int, values: Mapping[str, Any]) -> None:
        """Report the values of a step, but not yet what they change in the summary."""
        with self.forgiving("a metric"):
            self.summary.take(step, values)
            if self.run is not None and step > self.known:
                self.run.log(dict(values), step=step)

    def sample(self, step: int, text: str) -> None:
        """Report what the model wrote at a step."""
        with self.forgiving("a sample"):
            if self.run is not None and step > self.known:
                from wandb import Html

                # Not as a plain string, of which the site shows the last one only: of pages it shows one for each step.
                page = f'<meta charset="utf-8"><pre style="white-space: pre-wrap">{html.escape(text)}</pre>'
                self.run.log({"sample": Html(page, inject=False)}, step=step)

    def catch_up(self, folder: RunFolder) -> bool:
        """Report all that a resumed run has logged before, each step once. Whether there was any, and all was taken."""
        lines = read_lines(folder.metrics_file)
        with self.forgiving("what was logged before"):
            samples = read_samples(folder, [int(line["step"]) for line in lines if "val/loss" in line])
            for line in lines:
                step = int(line["step"])
                self.report(step, {name: line[name] for name in line.keys() - {"step"} if line[name] is not None})
                if step in samples:
                    self.sample(step, samples[step])
        self.sum_up()
        return bool(lines) and self.run is not None

    def sum_up(self) -> None:
        """Show what the run comes to so far."""
        with self.forgiving("the summary"):
            if self.run is not None:
                self.run.summary.update(self.summary.content())

    def finish(self, exit_code: int) -> None:
        """Close the run; any other exit code than 0 marks it as failed."""
        self.sum_up()
        with self.forgiving("the end of the run"):
            if self.run is not None:
                self.run.finish(exit_code=exit_code)
        self.run = None

    @contextlib.contextmanager
    def forgiving(self, what: str) -> Iterator[None]:
        """Give up on the dashboard, not on training, when something inside fails."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a foreign program that may fail in any way
            self.run = None
            self.say(f"wandb could not take {what} and is off from here on: {first_line(error)}")


def start_dashboard(config: Config, folder: RunFolder, say: Callable[[str], None]) -> Dashboard:
    """The dashboard that `tracking.wandb` asks for, or `WANDB_MODE` where set. Never prompts, never waits long."""
    mode = wandb_mode(config)
    if mode == "disabled":
        return Dashboard(None, say)
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # wandb would send its own crashes to its makers
    try:
        import wandb
    except Exception as error:  # noqa: BLE001 - a foreign program that may fail in any way, already at its import
        say(f"wandb cannot be loaded ({first_line(error)}), so there is no dashboard; metrics.jsonl has all numbers")
        return Dashboard(None, say)
    if mode == "online":
        mode = reachable_mode(wandb, say)
    for attempt in dict.fromkeys((mode, "offline")):
        try:
            dashboard = begin(wandb, attempt, config, folder, say)
        except Exception as error:  # noqa: BLE001 - a foreign program that may fail in any way
            say(f"wandb does not start ({attempt}): {first_line(error)}")
        else:
            return dashboard
    return Dashboard(None, say)


def begin(wandb: Any, mode: str, config: Config, folder: RunFolder, say: Callable[[str], None]) -> Dashboard:
    """The dashboard of this process, which knows what the server has of the run already and has told it the rest."""
    name = run_id(folder)
    known = last_sent(folder, name)
    if known is None and mode == "offline":  # then it is told as a run of its own, from its first step
        folder.wandb_id_file.unlink(missing_ok=True)
        name, known = run_id(folder), -1
        say(f"wandb cannot know offline which steps the server has, so this goes on as another run there: {name}")
    earlier, untold = parts(folder, name), unsent(folder, name)
    with contextlib.ExitStack() as where_it_fails:  # nothing was sent of it then, which nobody could tell later
        where_it_fails.callback(lambda: drop(set(parts(folder, name)) - set(earlier)))
        run = open_run(wandb, mode, config, folder, name)
        where_it_fails.pop_all()
    if mode == "online":
        say(f"wandb    {run.url}")
        known = run.starting_step - 1  # the server's own word
    dashboard = Dashboard(run, say, known=-1 if known is None else known)
    if dashboard.catch_up(folder):
        drop(untold)  # a killed process has left them torn, and without its last steps
    return dashboard


def wandb_mode(config: Config) -> str:
    """offline, online or disabled. Raises `ConfigError` for another `WANDB_MODE`."""
    variable = os.environ.get("WANDB_MODE")
    if not variable:
        return config.tracking.wandb
    if variable not in MODES:
        raise ConfigError(f"the variable WANDB_MODE is {variable!r}; it must be offline, online or disabled, or unset")
    return MODES[variable]


def reachable_mode(wandb: Any, say: Callable[[str], None]) -> str:
    """online where the server answers and takes our key, else offline, with the reason said."""
    try:
        url = urlsplit(wandb.setup(wandb.Settings(silent=True)).settings.base_url)
        # First of all: without a network, checking the key takes ten seconds to fail.
        behind_proxy = url.scheme in urllib.request.getproxies()  # then only the proxy needs to be in reach
        if not behind_proxy and not answers(url.hostname or "", url.port or (80 if url.scheme == "http" else 443)):
            say(f"wandb does not reach {url.hostname}, so the run is kept offline; wandb sync uploads it later")
            return "offline"
        if not wandb.login(prompt=False):
            say("wandb has no API key (wandb login makes one), so the run is kept offline")
            return "offline"
    except Exception as error:  # noqa: BLE001 - a foreign program that may fail in any way
        say(f"wandb cannot log in, so the run is kept offline: {first_line(error)}")
        return "offline"
    return "online"


def answers(host: str, port: int) -> bool:
    """Whether a server takes a connection within seconds. Looking up a name has no time-out, so a thread does it."""
    reached = threading.Event()

    def connect() -> None:
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=PROBE_SECONDS):
            reached.set()

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS)
    return reached.is_set()


def open_run(wandb: Any, mode: str, config: Config, folder: RunFolder, name: str) -> Any:
    """The wandb run of this run folder, continued where it was begun before."""
    settings = wandb.Settings(
        console="off",  # what is printed is not kept there
        disable_git=True,
        disable_code=True,
        finish_timeout=ONLINE_SECONDS,
        init_timeout=ONLINE_SECONDS,
        silent=True,
        x_transaction_log_flush_interval=FLUSH_SECONDS,
    )
    run = wandb.init(
        mode=mode,
        dir=str(folder.path),
        project=config.tracking.wandb_project,
        group=config.tracking.wandb_group,
        tags=config.tracking.wandb_tags or None,
        name=folder.path.name,
        id=name,
        resume="allow",
        config=config_to_dict(config),
        settings=settings,
    )
    for name in SUMMARIES:
        run.define_metric(name, summary="none")  # the last value would take the place of ours
    return run


def run_id(folder: RunFolder) -> str:
    """The id of the run on wandb, the same whenever it is resumed: its name, with a few random letters.

    A sweep gives ids of its own, in the variable `WANDB_RUN_ID`: to a folder that never had one, not for another run.
    """
    file = folder.wandb_id_file
    with contextlib.suppress(OSError, UnicodeDecodeError):
        kept = file.read_text(encoding="utf-8").strip()
        if RUN_ID.fullmatch(kept):
            return kept
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", folder.path.name).strip("-")[:48]
    given = "" if any(folder.wandb.glob("*run-*")) else os.environ.get("WANDB_RUN_ID", "")
    made = given if RUN_ID.fullmatch(given) else f"{name}-{secrets.token_hex(3)}".lstrip("-")
    file.parent.mkdir(exist_ok=True)
    write_text(file, made + "\n")
    return made


def first_line(error: BaseException) -> str:
    """The first line of what an error says, or its name."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

"""The event files: read back with TensorBoard's own reader, each step once, whatever ended the run."""

import base64
import math
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, Page
from commands import (
    ENGLISH,
    ROOT,
    TINY,
    call,
    checkpoint_file,
    environment,
    finish,
    metrics,
    pasted,
    start,
    succeed,
    wait_for_lines,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from config.schema import Config, TrackingConfig
from engine.run_folder import RunFolder, step_of
from engine.tensorboard import EventFile, check_tensorboard, start_event_file, synced_event_sizes
from engine.tracking import Tracker
from errors import CheckpointError

ON = Config(tracking=TrackingConfig(tensorboard=True))
RUN = ("data.source=text.txt", *TINY, "train.log_interval=1", "train.eval_interval=20", "train.checkpoint_interval=10")
RUN += ("tracking.tensorboard=true", "--quiet")
ENDLESS = (*RUN, "train.max_steps=100000", "train.keep_checkpoints=9999")

# In a picture of a chart: for each column of pixels the height of the curve, which is dark, from 0 to 1; the mark of a
# chosen step, a dark line from top to bottom, is none.
CURVE = """async picture => {
    const image = new Image();
    image.src = "data:image/png;base64," + picture;
    await image.decode();
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [image.width, image.height];
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    const {data} = context.getImageData(0, 0, canvas.width, canvas.height);
    const heights = [];
    for (let x = 0; x < canvas.width; x++) {
        const dark = [];
        for (let y = 0; y < canvas.height; y++) {
            const at = 4 * (y * canvas.width + x);
            if (data[at] + data[at + 1] + data[at + 2] < 400) dark.push(y);
        }
        if (dark.length && dark.length < canvas.height / 3) heights.push(1 - dark[0] / canvas.height);
    }
    return [heights, canvas.width];
}"""


class Events:
    """What TensorBoard reads of a run: all scalars and texts, each with its step."""

    def __init__(self, run: Path) -> None:
        all_of_them = {"scalars": 0, "tensors": 0}
        read = EventAccumulator(str(run / "tensorboard"), all_of_them, purge_orphaned_data=False).Reload()
        tags = read.Tags()
        self.scalars = {tag: [(one.step, one.value) for one in read.Scalars(tag)] for tag in tags["scalars"]}
        self.times = [one.wall_time for tag in tags["scalars"] for one in read.Scalars(tag)]
        self.texts = {
            tag: [(one.step, unindented(one.tensor_proto.string_val[0])) for one in read.Tensors(tag)]
            for tag in tags["tensors"]
        }


def unindented(text: bytes) -> str:
    """A text without the indentation by which TensorBoard knows that it is no Markdown."""
    lines = text.decode("utf-8").splitlines(keepends=True)
    assert all(line.startswith("    ") for line in lines)
    return "".join(line[4:] for line in lines)


def as_events(lines: list[dict[str, float]]) -> dict[str, list[tuple[float, object]]]:
    """The lines of metrics.jsonl as the scalars that they should be."""
    scalars: dict[str, list[tuple[float, object]]] = {}
    for line in lines:
        for name in line.keys() - {"step"}:
            # TensorBoard's numbers have seven digits.
            scalars.setdefault(name, []).append((line["step"], pytest.approx(line[name], rel=1e-6)))
    return scalars


def assert_all_is_there_once(run: Path) -> None:
    """The event files hold the metrics, samples and settings of the run, everything once."""
    events = Events(run)
    assert events.scalars == as_events(metrics(run))
    samples = "".join(f"--- step {step} ---\n{text}\n\n" for step, text in events.texts.get("sample", []))
    assert samples.encode() == (run / "samples.txt").read_bytes()
    configs = dict(events.texts["config"])
    assert len(configs) == len(events.texts["config"])
    assert configs[max(configs)] == (run / "config.yaml").read_text(encoding="utf-8")


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    (folder / "text.txt").write_text(ENGLISH, encoding="utf-8")
    return folder


@pytest.fixture
def without_tensorboard(tmp_path: Path) -> dict[str, str]:
    """The environment of a Python that has no such library."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['tensorboard'] = None\n", encoding="utf-8")
    return {"PYTHONPATH": str(tmp_path)}


def track(run: RunFolder, step: int = 0, sizes: dict[str, int] | None = None, config: Config = ON) -> Tracker:
    tracker = Tracker(run, sizes)
    tracker.event_file = start_event_file(config, run, step, sizes)
    return tracker


def test_metrics_samples_and_settings_are_read_back_while_the_run_goes_on(run: RunFolder) -> None:
    before = time.time()
    tracker = track(run)
    tracker.log(10, {"train/loss": 1.5, "perf/seconds": 2.0})
    tracker.log(20, {"train/loss": 1.25, "val/loss": 1.75})
    tracker.sample(20, "naïve 你好 🙂\n\n  two *words*")
    events = Events(run.path)
    assert events.scalars == {
        "train/loss": [(10, 1.5), (20, 1.25)],
        "perf/seconds": [(10, 2.0)],
        "val/loss": [(20, 1.75)],
    }
    assert events.texts["sample"] == [(20, "naïve 你好 🙂\n\n  two *words*")]
    ((step, config),) = events.texts["config"]
    assert step == 0
    assert "  tensorboard: true\n" in config
    assert all(before <= moment <= time.time() for moment in events.times)
    tracker.close(0)


@pytest.mark.filterwarnings("ignore:html5lib's sanitizer is deprecated:DeprecationWarning")  # TensorBoard's page has it
@pytest.mark.parametrize(
    "text", ["# no *title*\n\n<b>1</b> ```\n\n~~~\n- x", "a\rb\x0bc\u2028d", "", "\n", "<|endoftext|>"]
)
def test_a_text_is_shown_as_it_is_and_not_as_markdown(run: RunFolder, text: str) -> None:
    from tensorboard.plugin_util import markdown_to_safe_html

    tracker = track(run)
    tracker.sample(1, text)
    tracker.close(0)
    read = EventAccumulator(str(run.tensorboard)).Reload()
    html = markdown_to_safe_html(read.Tensors("sample")[0].tensor_proto.string_val[0])
    assert html.startswith("<pre><code>") if text.strip() else html == ""
    assert html.count("<") in (0, 4)  # that one block


def test_what_is_not_a_number_is_kept(run: RunFolder) -> None:
    tracker = track(run)
    tracker.log(1, {"optim/grad_norm": math.inf})
    tracker.close(0)
    assert Events(run.path).scalars == {"optim/grad_norm": [(1, math.inf)]}


def test_a_resumed_run_forgets_what_came_after_its_checkpoint(run: RunFolder) -> None:
    tracker = track(run)
    tracker.log(10, {"train/loss": 1.5})
    tracker.sample(10, "ten")
    sizes = tracker.file_sizes()
    tracker.log(20, {"train/loss": 1.25})
    tracker.sample(20, "twenty")
    assert tracker.event_file is not None
    tracker.event_file.file.write(b"torn by a crash")
    tracker.close(1)
    for _ in range(2):  # the first of them is killed before it has saved anything
        tracker = track(run, 10, sizes)
        tracker.log(30, {"train/loss": 1.0})
        tracker.close(1)
    events = Events(run.path)
    assert events.scalars == {"train/loss": [(10, 1.5), (30, 1.0)]}
    assert events.texts["sample"] == [(10, "ten")]
    assert [step for step, _ in events.texts["config"]] == [0, 10]


def test_a_tensorboard_that_is_open_is_told_what_to_forget(run: RunFolder) -> None:
    tracker = track(run)
    for step in (9, 10, 11, 12):
        tracker.log(step, {"train/loss": 1.5})
    tracker.close(1)
    open_one = EventAccumulator(str(run.tensorboard)).Reload()
    assert [one.step for one in open_one.Scalars("train/loss")] == [9, 10, 11, 12]
    track(run, 10, {}).close(0)
    assert [one.step for one in open_one.Reload().Scalars("train/loss")] == [9, 10]


def test_a_run_resumed_before_its_first_step_begins_anew(run: RunFolder) -> None:
    tracker = track(run)
    sizes = tracker.file_sizes()
    tracker.close(1)
    track(run, 0, sizes).close(0)
    assert [step for step, _ in Events(run.path).texts["config"]] == [0]


def test_a_run_resumed_without_tensorboard_keeps_what_there_is_for_another_time(run: RunFolder) -> None:
    tracker = track(run)
    tracker.log(10, {"train/loss": 1.5})
    sizes = tracker.file_sizes()
    tracker.log(20, {"train/loss": 1.25})
    tracker.close(1)
    tracker = track(run, 10, sizes, Config())
    tracker.log(20, {"train/loss": 1.0})
    assert Events(run.path).scalars == {"train/loss": [(10, 1.5)]}
    sizes = tracker.file_sizes()
    tracker.close(1)
    tracker = track(run, 20, sizes)
    tracker.log(30, {"train/loss": 0.75})
    tracker.close(0)
    assert Events(run.path).scalars == {"train/loss": [(10, 1.5), (30, 0.75)]}


def test_nothing_is_written_unless_it_is_asked_for(run: RunFolder) -> None:
    assert start_event_file(Config(), run, 0, None) is None
    assert synced_event_sizes(run) == {}
    assert not run.tensorboard.exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a /dev/full, where every write fails")
def test_a_full_disk_is_one_clear_error() -> None:
    file = EventFile(Path("/dev/full"))
    with pytest.raises(CheckpointError, match="/dev/full: could not be written: No space left on device; make room"):
        file.log(1, {"train/loss": 1.0})
    file.close()


def test_a_folder_that_cannot_be_made_is_one_clear_error(run: RunFolder) -> None:
    run.tensorboard.touch()
    with pytest.raises(CheckpointError, match=r"could not be written: .*; make room and resume"):
        start_event_file(ON, run, 0, None)


def test_a_library_that_is_missing_is_said_before_anything_is_done(
    tmp_path: Path, without_tensorboard: dict[str, str]
) -> None:
    refused = call(tmp_path, "train.py", *RUN, env=without_tensorboard)  # there is not even a text
    assert refused.error() == "error: tracking.tensorboard: the library is missing; pip install tensorboard"
    assert refused.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_nobody_else_needs_the_library_or_loads_it(
    tmp_path: Path, without_tensorboard: dict[str, str], run: RunFolder
) -> None:
    check_tensorboard(Config())
    loaded = "import sys, train; print([name for name in sys.modules if name.startswith(('tensorboard', 'google'))])"
    assert call(ROOT, "-c", loaded).out == "[]\n"
    (tmp_path / "text.txt").write_text(ENGLISH, encoding="utf-8")
    off = ("tracking.tensorboard=false", "train.max_steps=2")
    assert "tensorboard" not in succeed(tmp_path, "train.py", *RUN, *off, env=without_tensorboard).out
    assert not list(tmp_path.glob("runs/*/tensorboard"))


def test_a_run_shows_where_its_curves_are_and_is_replaced_with_them(home: Path) -> None:
    for _ in range(2):
        done = succeed(home, "train.py", *RUN, "train.max_steps=20", "name=whole", "--overwrite")
        assert done.err == ""
        assert pasted("curves", done.out).endswith(" --logdir runs/whole/tensorboard")
        assert max(map(len, done.out.splitlines())) <= 80
    assert len(list((home / "runs" / "whole" / "tensorboard").iterdir())) == 1
    assert_all_is_there_once(home / "runs" / "whole")
    assert [step for step, _ in Events(home / "runs" / "whole").scalars["train/loss"]] == list(range(1, 21))


def test_a_killed_run_is_resumed_without_losing_or_doubling_a_step(home: Path) -> None:
    run = home / "runs" / "killed"
    process = start(home, "train.py", *ENDLESS, "name=killed")
    wait_for_lines(process, run / "metrics.jsonl", 45)
    process.kill()
    assert finish(process).code == -signal.SIGKILL
    again = start(home, "train.py", "--resume", run, "--quiet")
    wait_for_lines(again, run / "metrics.jsonl", metrics(run)[-1]["step"] + 25)
    again.kill()
    finish(again)
    last = step_of(RunFolder(run).find("last"))
    assert last > 45
    done = succeed(home, "train.py", "--resume", run, f"train.max_steps={last + 5}", "--quiet")
    assert done.err == ""
    assert [line["step"] for line in metrics(run)] == list(range(1, last + 6))
    assert_all_is_there_once(run)
    config_steps = [step for step, _ in Events(run).texts["config"]]
    assert [config_steps[0], config_steps[-1]] == [0, last]
    back = succeed(home, "train.py", "--resume", checkpoint_file(run, 10), "train.max_steps=12", "--quiet")
    assert "back " in back.err
    assert [line["step"] for line in metrics(run)] == list(range(1, 13))
    assert_all_is_there_once(run)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_asked_to_stop_has_written_everything(home: Path, number: signal.Signals) -> None:
    run = home / "runs" / number.name
    process = start(home, "train.py", *ENDLESS, f"name={number.name}")
    wait_for_lines(process, run / "metrics.jsonl", 5)
    process.send_signal(number)
    stopped = finish(process)
    assert stopped.code == 130, stopped
    assert_all_is_there_once(run)


@pytest.fixture
def tensorboard_of_a_run(home: Path) -> Iterator[str]:
    """The address of TensorBoard, started as README says, over one run."""
    succeed(home, "train.py", *RUN, "train.max_steps=100", "runs_dir=shown", "name=one")
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", "shown", "--host", "127.0.0.1", "--port", "0"]
    env = environment({"PYTHONWARNINGS": ""})  # TensorBoard's own are not ours to mend
    with (home / "tensorboard.txt").open("wb") as said:
        process = subprocess.Popen(command, cwd=home, env=env, stdout=said, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 60
        while not (found := re.search(r"http://[0-9.:]+/", (home / "tensorboard.txt").read_text(encoding="utf-8"))):
            assert process.poll() is None, (home / "tensorboard.txt").read_text(encoding="utf-8")
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield found[0]
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def page_of_others(browser: Browser) -> Iterator[Page]:
    """A page that may warn of this and that: it is not ours."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    yield context.new_page()
    context.close()


def test_a_browser_shows_the_curves_the_samples_and_the_settings(
    tensorboard_of_a_run: str, page_of_others: Page, home: Path
) -> None:
    run, page = home / "shown" / "one", page_of_others
    page.goto(f"{tensorboard_of_a_run}#timeseries")
    page.get_by_role("combobox", name="Filter tags (regex)").fill("loss")
    for name in ("train/loss", "val/loss"):
        card = page.locator("scalar-card").filter(has=page.locator(f'[title="{name}"]'))
        values = [line[name] for line in metrics(run) if name in line]
        shown = f"{values[-1]:.4f}".rstrip("0")
        card.get_by_text(shown, exact=False).first.wait_for()  # the value of the last step, below the curve
        picture = base64.b64encode(card.locator(".series-view").first.screenshot()).decode()
        heights, width = page.evaluate(CURVE, picture)
        assert len(heights) > width / 2, name
        assert heights[0] > 0.7, name
        assert heights[-1] < 0.3, name
    page.goto(f"{tensorboard_of_a_run}#text")
    page.reload()
    page.get_by_text("d_model: 16").first.wait_for()
    written = "".join(page.locator("pre").all_inner_texts())
    last = Events(run).texts["sample"][-1][1]
    assert last.strip() in written
    assert (run / "config.yaml").read_text(encoding="utf-8").strip() in written

"""What a run has logged, read back as it was written."""

from pathlib import Path

import pytest

from engine.history import read_lines, read_samples
from engine.run_folder import RunFolder
from engine.tracking import Tracker

TEXTS = ["naïve 你好\r\n🙂", "", "\n\n\n", "--- step 30 ---\nno heading of ours", "--- step 20 ---\n", "ends\n"]
TEXTS.insert(2, "--- step 120 ---\nis still to come")


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def test_samples_come_back_as_they_were_whatever_the_model_wrote(run: RunFolder) -> None:
    tracker = Tracker(run)
    samples = {20 * number: text for number, text in enumerate(TEXTS, 1)}
    for step, text in samples.items():
        tracker.sample(step, text)
    tracker.close(0)
    assert read_samples(run, list(samples)) == samples


def test_lines_come_back_as_they_were(run: RunFolder) -> None:
    tracker = Tracker(run)
    tracker.log(1, {"train/loss": 0.1 + 0.2, "optim/grad_norm": float("inf")})
    tracker.close(0)
    assert read_lines(run.metrics_file) == [{"step": 1, "train/loss": 0.1 + 0.2, "optim/grad_norm": None}]


def test_files_that_are_gone_or_damaged_are_read_as_far_as_that_goes(run: RunFolder) -> None:
    assert (read_lines(run.metrics_file), read_samples(run, [1])) == ([], {})
    run.metrics_file.write_bytes(b"\xff")
    run.samples_file.write_bytes(b"\xff")
    assert (read_lines(run.metrics_file), read_samples(run, [1])) == ([], {})


def test_lines_that_are_torn_or_not_ours_are_left_out_and_all_others_read(run: RunFolder) -> None:
    odd = [b"{", b"\xff", b"[]", b"3", b'{"train/loss": 1.0}', b'{"step": "2"}', b'{"step": 2, "train/loss": "low"}']
    odd += [b'{"step": true}', b"", b"[" * 100_000]
    run.metrics_file.write_bytes(b"\n".join([b'{"step": 1}', *odd, b'{"step": 3, "train/loss": 1.5}', b'{"step": 4,']))
    assert read_lines(run.metrics_file) == [{"step": 1}, {"step": 3, "train/loss": 1.5}]

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from config.schema import DataConfig
from data.dataset import (
    Split,
    check_long_enough,
    draw_starts,
    evaluation_windows,
    open_split,
    sample_batch,
    sliding_windows,
    windows_at,
)
from data.prepare import PreparedData, prepare
from errors import DataError

ROOT = Path(__file__).parent.parent
unhurried = settings(deadline=None)  # a busy machine is no failure


def split_of(length: int) -> Split:
    return Split("val", np.arange(length, dtype=np.uint16))


def prepared_text(folder: Path, num_chars: int, val_fraction: float = 0.1) -> PreparedData:
    path = folder / "text.txt"
    path.write_text("ab" * (num_chars // 2) + "c" * (num_chars % 2), encoding="utf-8")
    config = DataConfig(source=str(path), cache_dir=str(folder / "cache"), val_fraction=val_fraction)
    return prepare(config, report=lambda line: None)


def test_targets_are_the_inputs_shifted_by_one() -> None:
    idx, targets = sample_batch(split_of(100), torch.Generator().manual_seed(1), 8, 5)
    assert idx.dtype == targets.dtype == torch.int64
    assert idx.shape == targets.shape == (8, 5)
    assert torch.equal(idx, idx[:, :1] + torch.arange(5))
    assert torch.equal(targets, idx + 1)
    assert idx.is_contiguous()
    assert targets.is_contiguous()


def test_the_generator_alone_decides_the_batch_and_its_state_can_be_saved() -> None:
    generator = torch.Generator().manual_seed(3)
    sample_batch(split_of(100), generator, 4, 5)
    state = generator.get_state()
    torch.manual_seed(99)
    np.random.seed(99)
    expected = sample_batch(split_of(100), generator, 4, 5)[0]
    generator.set_state(state)
    assert torch.equal(sample_batch(split_of(100), generator, 4, 5)[0], expected)
    assert not torch.equal(sample_batch(split_of(100), generator, 4, 5)[0], expected)


def test_the_batch_is_the_windows_at_the_drawn_starts() -> None:
    split = split_of(100)
    idx, targets = sample_batch(split, torch.Generator().manual_seed(5), 6, 7)
    starts = draw_starts(torch.Generator().manual_seed(5), 93, 6)
    expected_idx, expected_targets = windows_at(split, starts, 7)
    assert torch.equal(idx, expected_idx)
    assert torch.equal(targets, expected_targets)
    first_rows = windows_at(split, starts[:2], 7)[0]
    assert torch.equal(first_rows, idx[:2])


def test_every_window_can_be_drawn_and_the_last_token_is_only_a_target() -> None:
    idx, targets = sample_batch(split_of(8), torch.Generator().manual_seed(0), 500, 3)
    assert set(idx[:, 0].tolist()) == {0, 1, 2, 3, 4}
    assert idx.max() == 6
    assert targets.max() == 7


@unhurried
@given(st.integers(0, 60), st.integers(1, 9), st.integers(1, 5), st.none() | st.integers(0, 70))
def test_an_evaluation_meets_every_target_once_and_in_order(
    length: int, context_length: int, batch_size: int, max_tokens: int | None
) -> None:
    batches = list(evaluation_windows(split_of(length), context_length, batch_size, max_tokens))
    num_targets = max(length - 1, 0) if max_tokens is None else min(max(length - 1, 0), max_tokens)
    targets = [token for _, batch in batches for token in batch.flatten().tolist()]
    inputs = [token for batch, _ in batches for token in batch.flatten().tolist()]
    assert targets == list(range(1, num_targets + 1))
    assert inputs == list(range(num_targets))
    assert all(idx.shape == targets.shape for idx, targets in batches)
    assert all(len(idx) <= batch_size and idx.shape[1] <= context_length for idx, _ in batches)
    ragged = [len(idx) for idx, _ in batches if idx.shape[1] < context_length]
    assert ragged in ([], [1])


@st.composite
def context_and_stride(draw: st.DrawFn) -> tuple[int, int]:
    context_length = draw(st.integers(1, 9))
    return context_length, draw(st.integers(1, context_length))


@unhurried
@given(st.integers(0, 60), context_and_stride(), st.integers(1, 5), st.none() | st.integers(0, 70))
def test_sliding_windows_add_every_target_once_and_in_order_with_the_context_that_the_stride_leaves(
    length: int, shape: tuple[int, int], batch_size: int, max_tokens: int | None
) -> None:
    context_length, stride = shape
    batches = list(sliding_windows(split_of(length), context_length, batch_size, stride=stride, max_tokens=max_tokens))
    num_targets = max(length - 1, 0) if max_tokens is None else min(max(length - 1, 0), max_tokens)
    added = [token for _, targets in batches for token in targets.flatten().tolist()]
    assert added == list(range(1, num_targets + 1))
    for idx, targets in batches:
        assert len(idx) == len(targets) <= batch_size
        assert idx.shape[1] == min(context_length, num_targets)
        assert torch.equal(idx, idx[:, :1] + torch.arange(idx.shape[1]))
        assert torch.equal(targets, idx[:, -targets.shape[1] :] + 1)
        context = targets - idx[:, :1]
        assert (context >= targets.clamp(max=context_length - stride + 1)).all()


def test_the_two_splits_are_the_text_without_gap_or_overlap(tmp_path: Path) -> None:
    prepared = prepared_text(tmp_path, 300)
    train, val = open_split(prepared, "train"), open_split(prepared, "val")
    assert (len(train), len(val)) == (270, 30)
    together = np.concatenate([train.tokens, val.tokens])
    assert prepared.tokenizer.decode(together) == "ab" * 150


def test_prepared_tokens_cannot_be_changed_through_a_split(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="read-only"):
        open_split(prepared_text(tmp_path, 300), "train").tokens[0] = 1


def test_an_exact_fit_trains_and_one_token_less_does_not(tmp_path: Path) -> None:
    prepared = prepared_text(tmp_path, 300)
    check_long_enough(prepared, 29)
    with pytest.raises(DataError, match="val split has 30 tokens"):
        check_long_enough(prepared, 30)
    idx, targets = sample_batch(open_split(prepared, "val"), torch.Generator(), 3, 29)
    assert torch.equal(idx[0], idx[2])
    assert torch.equal(idx[:, 1:], targets[:, :-1])


def test_a_short_split_says_which_how_long_what_is_needed_and_what_would_work(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        check_long_enough(prepared_text(tmp_path, 300), 64)
    message = str(error.value)
    for fact in (
        "val split has 30 tokens",
        "model.context_length=64 needs 65",
        "model.context_length to 29",
        "data.val_fraction",
    ):
        assert fact in message
    assert "\n" not in message


def test_the_train_split_can_be_the_short_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train split has 30 tokens.*context_length to 29"):
        check_long_enough(prepared_text(tmp_path, 300, val_fraction=0.9), 64)


def test_no_context_is_advised_where_none_works(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"val split has 1 token, .*use a longer text") as error:
        check_long_enough(prepared_text(tmp_path, 5), 8)
    assert "set model.context_length" not in str(error.value)
    assert "val_fraction" not in str(error.value)


@pytest.mark.parametrize(
    ("num_train", "num_val", "where"),
    [(300, 30, "data.val_source={folder}/val.txt"), (30, 300, "data.source={folder}/text.txt")],
)
def test_of_two_texts_the_short_one_is_named_and_the_fraction_is_no_advice(
    tmp_path: Path, num_train: int, num_val: int, where: str
) -> None:
    for name, num_chars in (("text.txt", num_train), ("val.txt", num_val)):
        (tmp_path / name).write_text("a" * num_chars, encoding="utf-8")
    files = {"source": str(tmp_path / "text.txt"), "val_source": str(tmp_path / "val.txt")}
    prepared = prepare(DataConfig(**files, cache_dir=str(tmp_path / "cache")), report=lambda line: None)
    with pytest.raises(DataError) as error:
        check_long_enough(prepared, 64)
    assert str(error.value) == (
        f"{where.format(folder=tmp_path)}: the text is too short: it has 30 tokens, but model.context_length=64 "
        "needs 65 (context_length + 1); set model.context_length to 29 or less, or use a longer text"
    )


READ_MUCH = """
import sys, numpy as np, torch
from data.dataset import RESIDENT_LIMIT, Split, open_split, sample_batch
from pathlib import Path
import mmap

def resident_bytes():
    line = next(line for line in open("/proc/self/status") if line.startswith("RssFile"))
    return int(line.split()[1]) * 1024

with open(sys.argv[1], "rb") as file:
    mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
split = Split("train", np.frombuffer(mapping, np.uint8), mapping if sys.argv[2] == "bounded" else None)
generator = torch.Generator().manual_seed(1)
sample_batch(split, generator, 16, 64)
before, most = resident_bytes(), 0
for _ in range(1000):
    sample_batch(split, generator, 16, 64)
    most = max(most, resident_bytes())
print((most - before) / RESIDENT_LIMIT)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the resident memory from Linux's /proc")
def test_resident_memory_stays_bounded_however_much_is_read(tmp_path: Path) -> None:
    file = tmp_path / "tokens.bin"
    file.write_bytes(bytes(1 << 28))  # four times the limit
    shares = {}
    for how in ("bounded", "unbounded"):
        command = [sys.executable, "-c", READ_MUCH, str(file), how]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        shares[how] = float(result.stdout)
    assert shares["unbounded"] > 2, "the test reads too little to tell"
    # About 1 is the aim; how much of the file one access brings in is the system's choice.
    assert shares["bounded"] < 0.75 * shares["unbounded"]

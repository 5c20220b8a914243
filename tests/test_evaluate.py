"""Evaluation: every token counted once, the same number every time, comparable measures."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import ENGLISH, TINY, Finished, call, metrics, succeed, two_at_a_time

import train
from config.schema import ModelConfig
from data.dataset import Split
from data.tokenizer import ByteTokenizer, CharTokenizer
from engine.loading import load_model
from engine.runtime import Runtime
from errors import DataError, UserError
from evaluate import Evaluation, evaluate
from evaluate import main as evaluate_command
from model import GPT, next_token_loss

RUNTIME = Runtime(torch.device("cpu"), "fp32", compile=False, threads=1, reason="a test")


def tiny_model(vocab_size: int) -> GPT:
    torch.manual_seed(0)
    return GPT(ModelConfig(context_length=8, d_model=16, num_heads=2, num_layers=2, dropout=0.5), vocab_size)


def sharp_model(vocab_size: int) -> GPT:
    """One whose predictions depend much on what it sees, so that a wrong context shows in the loss."""
    model = tiny_model(vocab_size)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=0.3)
    return model.eval()


def loss_one_by_one(model: GPT, ids: np.ndarray) -> float:
    """The mean loss with each token predicted by a call of its own, from the start of its window."""
    model.eval()
    total = 0.0
    for position in range(1, len(ids)):
        start = (position - 1) // 8 * 8
        logits = model(torch.tensor([ids[start:position].tolist()]))[0, -1]
        total -= torch.log_softmax(logits.double(), dim=-1)[ids[position]].item()
    return total / (len(ids) - 1)


@pytest.mark.parametrize("length", [2, 8, 9, 10, 100])
def test_the_loss_counts_every_token_but_the_first_exactly_once(length: int) -> None:
    tokenizer = CharTokenizer("abc")
    ids = np.random.default_rng(0).integers(3, size=length).astype(np.uint8)
    model = tiny_model(tokenizer.vocab_size)
    result = evaluate(model, Split("val", ids), tokenizer, RUNTIME)
    assert result.tokens == length - 1
    assert result.loss == pytest.approx(loss_one_by_one(model, ids), abs=1e-5)


def strided_loss_one_by_one(model: GPT, ids: np.ndarray, stride: int) -> float:
    """The same, from the start of the first window that reaches the token; windows of 8 begin `stride` apart."""
    model.eval()
    total = 0.0
    start, last_start = 0, max(0, len(ids) - 1 - 8)  # the last window ends with the text
    for position in range(1, len(ids)):
        while start + 8 < position:
            start = min(start + stride, last_start)
        logits = model(torch.tensor([ids[start:position].tolist()]))[0, -1]
        total -= torch.log_softmax(logits.double(), dim=-1)[ids[position]].item()
    return total / (len(ids) - 1)


@pytest.mark.parametrize("length", [2, 8, 9, 10, 17, 100])
@pytest.mark.parametrize("stride", [1, 2, 3, 5, 7, 8])
def test_with_a_stride_every_token_counts_once_as_the_first_window_that_reaches_it_predicts_it(
    stride: int, length: int
) -> None:
    tokenizer = CharTokenizer("abé")
    ids = np.random.default_rng(0).integers(3, size=length).astype(np.uint8)
    model = sharp_model(tokenizer.vocab_size)
    result = evaluate(model, Split("val", ids), tokenizer, RUNTIME, stride=stride)
    assert (result.tokens, result.chars) == (length - 1, length - 1)
    assert result.bytes == length - 1 + (ids[1:] == 2).sum()
    assert result.loss == pytest.approx(strided_loss_one_by_one(model, ids, stride), abs=1e-6)


@pytest.mark.parametrize("length", [2, 8, 9, 17, 97])
def test_a_stride_of_the_whole_window_is_no_stride_where_windows_fill_the_text(length: int) -> None:
    tokenizer = CharTokenizer("abc")
    split = Split("val", np.random.default_rng(0).integers(3, size=length).astype(np.uint8))
    model = sharp_model(tokenizer.vocab_size)
    plain, strided = (evaluate(model, split, tokenizer, RUNTIME, stride=stride) for stride in (None, 8))
    assert strided.loss == pytest.approx(plain.loss, abs=1e-6)
    assert (strided.tokens, strided.chars, strided.bytes) == (plain.tokens, plain.chars, plain.bytes)


def test_a_stride_of_the_whole_window_gives_the_end_of_the_text_more_context_than_no_stride() -> None:
    tokenizer = CharTokenizer("abc")
    ids = np.random.default_rng(0).integers(3, size=20).astype(np.uint8)  # 19 targets: two windows of 8, and 3
    model = sharp_model(tokenizer.vocab_size)
    plain, strided = (evaluate(model, Split("val", ids), tokenizer, RUNTIME, stride=stride) for stride in (None, 8))
    logits = {start: model(torch.tensor([ids[start:19].tolist()]))[0, -3:] for start in (16, 11)}
    rest = {start: next_token_loss(each[None], torch.tensor([ids[17:].tolist()])) for start, each in logits.items()}
    assert 19 * (plain.loss - strided.loss) == pytest.approx(3 * (rest[16] - rest[11]).item(), abs=1e-5)


def test_an_evaluation_repeats_exactly_and_leaves_generators_and_mode_alone() -> None:
    tokenizer = CharTokenizer("abc")
    split = Split("val", np.random.default_rng(0).integers(3, size=100).astype(np.uint8))
    model = tiny_model(tokenizer.vocab_size).train()
    before = torch.get_rng_state()
    first = evaluate(model, split, tokenizer, RUNTIME)
    assert evaluate(model, split, tokenizer, RUNTIME) == first
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    evaluate(model.eval(), split, tokenizer, RUNTIME)
    assert not model.training


def test_max_tokens_takes_the_first_ones() -> None:
    tokenizer = CharTokenizer("abc")
    ids = np.random.default_rng(0).integers(3, size=100).astype(np.uint8)
    model = tiny_model(tokenizer.vocab_size)
    for stride in (None, 3):
        limited = evaluate(model, Split("val", ids), tokenizer, RUNTIME, max_tokens=20, stride=stride)
        expected = evaluate(model, Split("val", ids[:21]), tokenizer, RUNTIME, stride=stride)
        assert limited.loss == pytest.approx(expected.loss, abs=1e-6)
        assert limited.tokens == 20


def test_bits_are_per_character_and_per_byte_whatever_the_tokens_are() -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode("aé你🙂" * 5)  # 4 characters in 1 + 2 + 3 + 4 bytes
    result = evaluate(tiny_model(tokenizer.vocab_size), Split("val", ids), tokenizer, RUNTIME)
    assert (result.tokens, result.chars, result.bytes) == (49, 19, 49)  # all but the first "a"
    assert result.bits_per_char == pytest.approx(result.loss * 49 / math.log(2) / 19)
    assert result.bits_per_byte == pytest.approx(result.loss / math.log(2))


def test_documents_ends_count_as_tokens_and_not_as_characters() -> None:
    tokenizer = CharTokenizer("aé")
    ids = np.array([0, tokenizer.end_id, 1, tokenizer.end_id], dtype=np.uint8)
    result = evaluate(tiny_model(tokenizer.vocab_size), Split("val", ids), tokenizer, RUNTIME)
    assert (result.tokens, result.chars, result.bytes) == (3, 1, 2)


def test_perplexity_is_the_number_of_equally_likely_tokens_and_never_overflows() -> None:
    assert Evaluation(math.log(5), 10, 10, 10).perplexity == pytest.approx(5)
    assert math.isfinite(Evaluation(10_000.0, 10, 10, 10).perplexity)
    assert math.isnan(Evaluation(math.nan, 10, 10, 10).perplexity)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run in runs/a, and texts beside it."""
    folder = tmp_path_factory.mktemp("evaluate")
    (folder / "text.txt").write_text(ENGLISH, encoding="utf-8")
    (folder / "other.txt").write_text("the lazy fox\n", encoding="utf-8")
    (folder / "unknown.txt").write_text("the lazy 狐, 狐!\n", encoding="utf-8")
    (folder / "short.txt").write_text("t", encoding="utf-8")
    (folder / "latin1.txt").write_bytes(b"caf\xe9")
    succeed(folder, "train.py", *TINY, "data.source=text.txt", "train.max_steps=6", "train.eval_interval=3", "name=a")
    return folder


def side_by_side(folder: Path, commands: list[list[str]]) -> list[Finished]:
    with two_at_a_time() as later:
        running = [later(folder, *arguments) for arguments in commands]
        return [each.result() for each in running]


def test_the_command_measures_what_training_measured(folder: Path) -> None:
    again, text, train = side_by_side(
        folder,
        [
            ["evaluate.py", "runs/a", "--json", "--checkpoint", "last", "--threads", "1"],
            ["evaluate.py", "runs/a", "--checkpoint", "last", "--threads", "1"],
            ["evaluate.py", "runs/a", "--split", "train", "--json"],
        ],
    )
    facts = json.loads(again.out)
    trained = metrics(folder / "runs" / "a")[-1]
    assert facts["loss"] == trained["val/loss"]
    assert facts["bits_per_char"] == trained["val/bits_per_char"]
    assert facts["step"] == 6
    assert facts["stride"] is None
    assert f"loss           {facts['loss']:.4f} nats per token" in text.out
    assert "windows        of 8 tokens, side by side" in text.out
    assert json.loads(train.out)["tokens"] == int(0.9 * len(ENGLISH)) - 1


def test_the_command_slides_the_window_over_any_text(folder: Path) -> None:
    own, text, other = side_by_side(
        folder,
        [
            ["evaluate.py", "runs/a", "--json", "--stride", "3"],
            ["evaluate.py", "runs/a", "--stride", "3"],
            ["evaluate.py", "runs/a", "--json", "--stride", "8", "--text-file", "other.txt"],
        ],
    )
    facts, trained = json.loads(own.out), load_model(str(folder / "runs" / "a"))
    val = ENGLISH[int(0.9 * len(ENGLISH)) :]
    expected = strided_loss_one_by_one(trained.model, trained.tokenizer.encode(val), 3)
    assert (facts["stride"], facts["tokens"], facts["chars"]) == (3, len(val) - 1, len(val) - 1)
    assert facts["loss"] == pytest.approx(expected, abs=1e-6)
    assert facts["bits_per_char"] == pytest.approx(expected / math.log(2), abs=1e-5)
    assert "windows        of 8 tokens, every 3" in text.out.splitlines()
    assert max(map(len, text.out.splitlines())) <= 80
    assert (json.loads(other.out)["stride"], json.loads(other.out)["tokens"]) == (8, 12)


def test_the_command_measures_what_weights_of_8_bits_cost(folder: Path) -> None:
    exact, rounded, text = side_by_side(
        folder,
        [
            ["evaluate.py", "runs/a", "--json"],
            ["evaluate.py", "runs/a", "--json", "--weights", "int8"],
            ["evaluate.py", "runs/a", "--weights", "int8"],
        ],
    )
    before, after = json.loads(exact.out), json.loads(rounded.out)
    assert (before["weights"], after["weights"]) == ("exact", "int8")
    assert 0 < abs(after["loss"] - before["loss"]) < 0.01
    assert text.out.splitlines()[2].endswith(", weights of 8 bits")


@pytest.mark.parametrize("stride", ["0", "-1", "9", "1000000000000000000000"])
def test_a_stride_that_leaves_tokens_out_or_stands_still_is_refused(folder: Path, stride: str) -> None:
    with pytest.raises(UserError) as error:
        evaluate_command([str(folder / "runs" / "a"), "--stride", stride])
    assert str(error.value) == (
        f"--stride must be from 1 to 8 (this model's context_length), got {stride}; "
        "N takes 8 / N times as long as without"
    )


def test_a_stride_that_is_no_whole_number_is_refused() -> None:
    with pytest.raises(UserError, match=r"--stride: invalid int value: '2\.5'"):
        evaluate_command(["runs/a", "--stride", "2.5"])


def test_any_text_file_can_be_measured_and_faults_in_it_are_one_line(folder: Path) -> None:
    fine, unknown, short, latin1, missing = side_by_side(
        folder,
        [
            ["evaluate.py", "runs/a", "--json", "--text-file", name]
            for name in ("other.txt", "unknown.txt", "short.txt", "latin1.txt", "othr.txt")
        ],
    )
    assert json.loads(fine.out)["tokens"] == 12
    assert "the vocabulary lacks 2 of the text's characters" in unknown.error()
    assert "'狐' at 9, 12; '!' at 13" in unknown.error()
    assert "has 1 token, and at least 2 are needed" in short.error()
    assert "latin1.txt: byte 3" in latin1.error()
    assert "did you mean 'other.txt'?" in missing.error()


def test_a_text_that_has_changed_since_is_not_taken_for_the_one_that_was_trained_on(folder: Path) -> None:
    (folder / "text.txt").write_text(ENGLISH + "more", encoding="utf-8")
    changed = call(folder, "evaluate.py", "runs/a")
    (folder / "text.txt").write_text(ENGLISH, encoding="utf-8")
    assert "not the text that the model was trained on any more" in changed.error()


class TestTextFiles:
    """Another text is read, cut into documents and encoded as the training text was."""

    @pytest.fixture
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.chdir(tmp_path)
        return tmp_path

    def trained_on(self, content: bytes, *settings: str) -> None:
        Path("text.txt").write_bytes(content)
        train.main(
            [
                "data.source=text.txt",
                *TINY,
                "train.max_steps=2",
                "train.eval_interval=2",
                "name=a",
                *settings,
                "--quiet",
            ]
        )

    def measure(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict[str, float], str]:
        capsys.readouterr()
        assert evaluate_command(["runs/a", "--json", "--text-file", *arguments]) == 0
        output = capsys.readouterr()
        return json.loads(output.out), output.err

    def test_lines_that_were_documents_are_documents(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.trained_on(b"anna\nbob\ncarla\n" * 20, "data.documents=line")
        (home / "names.txt").write_text("bob\n\nanna\n", encoding="utf-8")
        facts, _ = self.measure(capsys, "names.txt")
        assert facts["tokens"] == len("bob|anna|") - 1

    def test_the_encoding_is_that_of_the_run_or_the_one_that_is_named(
        self, home: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.trained_on("café crème\n".encode("cp1252") * 30, "data.encoding=cp1252")
        (home / "cp1252.txt").write_bytes("crème".encode("cp1252"))
        (home / "utf8.txt").write_text("crème", encoding="utf-8")
        first, _ = self.measure(capsys, "cp1252.txt")
        second, _ = self.measure(capsys, "utf8.txt", "--encoding", "utf-8")
        assert first["loss"] == second["loss"]

    def test_unknown_characters_are_left_out_where_that_is_asked_for(
        self, home: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.trained_on(ENGLISH.encode())
        (home / "other.txt").write_text("the 狐 fox", encoding="utf-8")
        with pytest.raises(DataError, match=r"lacks 1 of .*; or --skip-unknown"):
            evaluate_command(["runs/a", "--text-file", "other.txt"])
        facts, said = self.measure(capsys, "other.txt", "--skip-unknown")
        assert "1 character (11.11% of the text) left out" in said
        assert facts["tokens"] == len("the  fox") - 1

    def test_characters_that_share_a_token_are_counted_aloud(
        self, home: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.trained_on(ENGLISH.encode() + b"XYZ", "data.min_char_count=2")
        (home / "other.txt").write_text("the XQ fox", encoding="utf-8")
        facts, said = self.measure(capsys, "other.txt")
        assert (facts["tokens"], facts["bytes"]) == (9, 9)
        assert "2 characters (20.00%) are unknown to the model" in said

    @pytest.mark.parametrize("extra", [["--encoding", "utf-8"], ["--skip-unknown"]])
    def test_options_of_a_text_file_need_one(self, extra: list[str]) -> None:
        with pytest.raises(UserError, match="--text-file"):
            evaluate_command(["runs/a", *extra])

    @pytest.mark.parametrize("content", ["", "\n\n"])
    def test_a_text_of_nothing_is_refused(self, home: Path, content: str) -> None:
        self.trained_on(ENGLISH.encode(), "data.documents=line")
        Path("nothing.txt").write_text(content, encoding="utf-8")
        with pytest.raises(DataError, match=r"nothing.txt: has 0 tokens, and at least 2"):
            evaluate_command(["runs/a", "--text-file", "nothing.txt"])

    def test_an_encoding_that_there_is_not_is_refused(self) -> None:
        with pytest.raises(UserError, match="--encoding must be one that Python knows"):
            evaluate_command(["runs/a", "--text-file", "a.txt", "--encoding", "klingon"])

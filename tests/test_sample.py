"""sample.py as a user meets it: prompts, choices, output, and how it refuses."""

import gzip
import json
import os
import select
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import ENGLISH, ROOT, TINY, checkpoint_file, environment, finish, start, succeed, two_at_a_time

import sample
from engine.loading import load_model
from errors import UserError


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing in it but two runs: on one text, and on several documents of bytes."""
    folder = tmp_path_factory.mktemp("sample")
    (folder / "text.txt").write_text(ENGLISH, encoding="utf-8")
    (folder / "documents").mkdir()
    for number in range(60):
        (folder / "documents" / f"{number:02}.txt").write_text("né🙂" * 3, encoding="utf-8")
    steps = ("train.eval_interval=100", "--quiet")
    files = ",".join(f"documents/{number:02}.txt" for number in range(60))
    bytes_ = (f"data.source=[{files}]", "data.tokenizer=byte", "train.max_steps=80", "train.batch_size=16")
    with two_at_a_time() as call_later:
        runs = [
            call_later(folder, "train.py", *TINY, *steps, "data.source=text.txt", "name=one", "train.max_steps=20"),
            call_later(folder, "train.py", *TINY, *steps, *bytes_, "name=many"),
        ]
        for run in runs:
            assert run.result().code == 0, run.result().err
    for source in ("text.txt", "documents", "data"):
        shutil.rmtree(folder / source) if (folder / source).is_dir() else (folder / source).unlink()
    return folder


@pytest.fixture
def write(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command in this process, which is quicker: its arguments in, its stdout and stderr out."""
    monkeypatch.chdir(home)

    def run(*arguments: object) -> tuple[str, str]:
        words = [str(argument) for argument in arguments]
        if words[0].startswith("-"):
            words.insert(0, "runs/one")
        assert sample.main(words) == 0
        captured = capsys.readouterr()
        return captured.out, captured.err

    return run


def refused(write: Any, *arguments: object) -> str:
    with pytest.raises(UserError) as caught:
        write(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


class TestPrompts:
    def test_a_sample_begins_with_its_prompt_and_goes_on_for_exactly_n_tokens(self, write: Any) -> None:
        out, _ = write("--prompt", "the dog", "--max-new-tokens", 33)
        assert out.startswith("the dog")
        assert len(out) == len("the dog") + 33 + len("\n")

    def test_no_prompt_and_an_empty_one_are_the_same(self, write: Any) -> None:
        without, _ = write("--seed", 1, "--max-new-tokens", 20)
        empty, _ = write("--seed", 1, "--max-new-tokens", 20, "--prompt", "")
        assert without == empty
        assert len(without) == 21

    def test_unknown_characters_are_listed_with_their_positions(self, write: Any) -> None:
        message = refused(write, "--prompt", "Zebra Zoë")
        assert message.startswith("prompt: ")
        assert "'Z' at 0, 6" in message
        assert "'ë' at 8" in message

    def test_unknown_characters_can_be_skipped_all_of_them_too(self, write: Any) -> None:
        seeded = ("--seed", 3, "--max-new-tokens", 9)
        out, err = write("--prompt", "Ze Zë", "--skip-unknown", *seeded)
        assert "prompt: skipped 'Z', 'ë'" in err
        assert out == write("--prompt", "e ", *seeded)[0]
        assert write("--prompt", "ZZZ", "--skip-unknown", *seeded)[0] == write(*seeded)[0]
        assert "skipped" not in write("--prompt", "the", "--skip-unknown", *seeded)[1]

    def test_a_prompt_longer_than_the_window_works_and_says_so(self, write: Any) -> None:
        prompt = ("the lazy dog " * 3)[:24]
        out, err = write("--prompt", prompt, "--max-new-tokens", 20, "--seed", 3)
        assert "prompt: has 24 tokens, of which the model reads the last 8" in err
        assert out.startswith(prompt)
        assert len(out) == 24 + 20 + 1
        greedy = ("--max-new-tokens", 20, "--temperature", 0)
        read, whole = (write("--prompt", text, *greedy)[0] for text in (prompt[-8:], prompt))
        assert whole[24:] == read[8:], "only the last window matters"

    def test_an_equals_sign_or_a_dash_in_a_prompt_is_text(self, write: Any) -> None:
        out, _ = write("runs/many", "--prompt=--a=b", "--max-new-tokens", 2)
        assert out.startswith("--a=b")

    @pytest.mark.parametrize("content", [b"the dog\n", b"\xef\xbb\xbfthe dog\n", b"the dog\r\n"])
    def test_a_prompt_from_a_file_keeps_its_newlines_but_not_its_mark(self, write: Any, content: bytes) -> None:
        Path("prompt.txt").write_bytes(content)
        out, _ = write("--prompt-file", "prompt.txt", "--max-new-tokens", 5)
        assert out.startswith("the dog\n")
        assert len(out) == len("the dog\n") + 5 + 1

    def test_a_prompt_file_that_cannot_be_read_is_named(self, write: Any) -> None:
        assert "--prompt-file: there is no file 'nowhere.txt'" in refused(write, "--prompt-file", "nowhere.txt")
        assert "--prompt-file: '/dev/zero' is not a regular file" in refused(write, "--prompt-file", "/dev/zero")
        Path("latin.txt").write_bytes(b"caf\xe9")
        assert "latin.txt: byte 3" in refused(write, "--prompt-file", "latin.txt")

    def test_a_prompt_file_may_be_packed_and_a_pipe_may_be_named(self, write: Any) -> None:
        Path("packed.gz").write_bytes(gzip.compress(b"the dog"))
        assert write("--prompt-file", "packed.gz", "--max-new-tokens", 3)[0].startswith("the dog")
        os.mkfifo("pipe")
        writer = threading.Thread(target=Path("pipe").write_bytes, args=(b"the fox",))
        writer.start()
        assert write("--prompt-file", "pipe", "--max-new-tokens", 3)[0].startswith("the fox")
        writer.join()

    def test_two_prompts_are_one_too_many(self, write: Any) -> None:
        assert "not allowed with" in refused(write, "--prompt", "a", "--prompt-file", "b")


class TestChoices:
    def test_temperature_0_is_the_same_whatever_the_seed(self, write: Any) -> None:
        one, _ = write("--temperature", 0, "--seed", 1, "--max-new-tokens", 40)
        other, _ = write("--temperature", 0, "--seed", 2, "--max-new-tokens", 40)
        tiny, _ = write("--temperature", 1e-9, "--seed", 2, "--max-new-tokens", 40)
        top_1, _ = write("--top-k", 1, "--max-new-tokens", 40)
        assert one == other == tiny == top_1

    def test_a_seed_repeats_a_text_and_another_gives_another(self, write: Any) -> None:
        first, again, other = (write("--seed", seed, "--max-new-tokens", 40)[0] for seed in (5, 5, 6))
        assert first == again != other

    def test_without_a_seed_every_text_is_new(self, write: Any) -> None:
        assert write("--max-new-tokens", 40)[0] != write("--max-new-tokens", 40)[0]

    def test_several_samples_differ_and_the_first_is_that_of_the_seed(self, write: Any) -> None:
        several = write("--seed", 5, "--max-new-tokens", 40, "--num-samples", 3)[0].split("\n---\n")
        alone, _ = write("--seed", 5, "--max-new-tokens", 40)
        assert len(set(several)) == len(several) == 3
        assert several[0] == alone

    @pytest.mark.parametrize("k", [0, len(set(ENGLISH)) + 1, 200])
    def test_top_k_of_all_or_more_tokens_changes_nothing(self, write: Any, k: int) -> None:
        assert write("--top-k", k, "--seed", 1, "--max-new-tokens", 30) == write("--seed", 1, "--max-new-tokens", 30)

    def test_a_tiny_top_p_is_greedy(self, write: Any) -> None:
        assert write("--top-p", 1e-9, "--max-new-tokens", 30) == write("--temperature", 0, "--max-new-tokens", 30)

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("--top-k", -3),
            ("--temperature", "nan"),
            ("--temperature", -1),
            ("--temperature", "inf"),
            ("--temperature", "warm"),
            ("--top-p", 0),
            ("--top-p", 1.5),
            ("--min-p", -0.1),
            ("--min-p", 2.0),
            ("--repetition-penalty", 0.0),
            ("--repetition-penalty", "nan"),
            ("--stop", ""),
            ("--weights", "int4"),
            ("--max-new-tokens", 0),
            ("--num-samples", 0),
            ("--seed", -1),
            ("--precision", "fp8"),
            ("--device", "gpu"),
            ("--threads", 0),
            ("--checkpoint", "first"),
        ],
    )
    def test_a_value_that_cannot_be_is_refused_by_name(self, write: Any, option: str, value: object) -> None:
        message = refused(write, option, value)
        assert option.removeprefix("--").partition("-")[0] in message
        assert str(value) in message


class TestOutput:
    def test_json_holds_the_text_and_how_it_came_to_be(self, write: Any) -> None:
        out, _ = write(
            "--json", "--prompt", "the", "--num-samples", 2, "--seed", 1, "--max-new-tokens", 12, "--top-k", 5
        )
        samples = json.loads(out)
        assert [s["index"] for s in samples] == [0, 1]
        for s in samples:
            assert s["prompt"] == "the"
            assert len(s["text"]) == s["tokens"] == len(s["token_ids"]) == 12
            assert s["tokens_per_second"] > 0
            assert (s["seed"], s["top_k"], s["temperature"], s["step"]) == (1, 5, 0.8, 20)
            assert (s["max_new_tokens"], s["stop"], s["ignore_end"], s["min_p"]) == (12, [], False, 0.0)
            assert s["reached_end"] is False
        plain, _ = write("--prompt", "the", "--seed", 1, "--max-new-tokens", 12, "--top-k", 5)
        assert plain == "the" + samples[0]["text"] + "\n"

    def test_log_probabilities_are_the_models_own(self, write: Any) -> None:
        (s,) = json.loads(
            write("--json", "--prompt", "the", "--max-new-tokens", 5, "--top-k", 1, "--temperature", 2)[0]
        )
        trained = load_model("runs/one", precision="fp32")
        idx = torch.tensor([trained.tokenizer.encode("the" + s["text"]).tolist()])
        with torch.no_grad():
            log_probabilities = trained.model(idx).log_softmax(-1)[0, 2:-1]
        expected = log_probabilities[range(5), s["token_ids"]]
        torch.testing.assert_close(torch.tensor(s["log_probabilities"]), expected, rtol=0, atol=1e-5)

    def test_a_file_of_prompts_gives_a_json_line_for_each_text(self, write: Any) -> None:
        Path("prompts.txt").write_bytes(b"the\n\nthe quick brown\r\ndog")
        options = ("--seed", 2, "--max-new-tokens", 15, "--temperature", 1.2)
        out, _ = write("--prompts-file", "prompts.txt", "--num-samples", 2, *options)
        lines = [json.loads(line) for line in out.splitlines()]
        assert [(s["prompt"], s["index"]) for s in lines] == [
            (prompt, index) for prompt in ("the", "", "the quick brown", "dog") for index in (0, 1)
        ]
        assert [s["line"] for s in lines] == [1, 1, 2, 2, 3, 3, 4, 4]
        for prompt in ("the", "dog"):
            alone = json.loads(write("--prompt", prompt, "--num-samples", 2, "--json", *options)[0])
            for s, t in zip([s for s in lines if s["prompt"] == prompt], alone, strict=True):
                assert (s["text"], s["token_ids"], s["seed"]) == (t["text"], t["token_ids"], 2)
        write("--prompts-file", "prompts.txt", "--num-samples", 2, *options, "--out", "lines.jsonl")
        written = [json.loads(line) for line in Path("lines.jsonl").read_text(encoding="utf-8").splitlines()]
        assert [s["text"] for s in written] == [s["text"] for s in lines]

    def test_a_line_of_prompts_that_cannot_be_read_is_named(self, write: Any) -> None:
        Path("prompts.txt").write_text("the\nZoë\n", encoding="utf-8")
        assert "--prompts-file prompts.txt, line 2: " in refused(write, "--prompts-file", "prompts.txt")
        Path("prompts.txt").write_bytes(b"the\ncaf\xe9\n")
        assert "byte 7" in refused(write, "--prompts-file", "prompts.txt")
        assert "there is no file" in refused(write, "--prompts-file", "nowhere.txt")

    def test_a_stop_string_ends_the_text_and_is_not_shown(self, write: Any) -> None:
        options = ("--seed", 2, "--max-new-tokens", 60, "--json")
        (whole,) = json.loads(write(*options)[0])
        stop = whole["text"][20:23]
        before = whole["text"][: whole["text"].index(stop)]
        (stopped,) = json.loads(write(*options, "--stop", "never there", "--stop", stop)[0])
        assert (stopped["text"], stopped["stopped_at"], whole["stopped_at"]) == (before, stop, None)
        assert stopped["token_ids"] == whole["token_ids"][: len(before) + 3]
        plain, _ = write("--seed", 2, "--max-new-tokens", 60, "--stop", stop)
        assert plain == before + "\n"

    def test_a_stop_string_may_be_a_newline(self, write: Any) -> None:
        out, _ = write("--prompt", "the", "--temperature", 2, "--seed", 1, "--max-new-tokens", 3000, "--stop", r"\n")
        assert out.count("\n") == 1
        assert len(out) < 3000

    def test_a_stop_string_that_cannot_come_is_said(self, write: Any) -> None:
        assert write("--stop", "Ω", "--max-new-tokens", 2)[1].startswith("--stop 'Ω': has characters that the model")
        assert write("--stop", "\r\n", "--max-new-tokens", 2)[1] == "", "which is a newline to this model"

    def test_options_without_effect_are_said(self, write: Any) -> None:
        _, err = write("--temperature", 0, "--top-k", 3, "--seed", 1, "--num-samples", 2, "--max-new-tokens", 2)
        assert err.splitlines() == [
            "--temperature 0 takes the likeliest token; no effect: --top-k, --seed",
            "--temperature 0 takes the likeliest token, so the samples of a prompt are all the same",
        ]

    def test_many_samples_come_in_their_order_however_long_each_is(self, write: Any) -> None:
        options = ("runs/many", "--seed", 1, "--max-new-tokens", 60, "--num-samples", 40)
        samples = json.loads(write(*options, "--json")[0])
        assert write(*options)[0] == "\n---\n".join(s["text"] + "\n" for s in samples)[:-1] + "\n"
        assert len({s["tokens"] for s in samples}) > 3

    def test_int8_weights_write_much_the_same_and_say_so(self, write: Any) -> None:
        options = ("--prompt", "the", "--json", "--temperature", 0, "--max-new-tokens", 10)
        (exact,), (rounded,) = (json.loads(write(*options, *more)[0]) for more in ((), ("--weights", "int8")))
        assert (exact["weights"], rounded["weights"]) == ("exact", "int8")
        assert rounded["log_probabilities"] != exact["log_probabilities"]
        assert rounded["log_probabilities"][0] == pytest.approx(exact["log_probabilities"][0], abs=0.05)

    def test_json_of_emoji_is_readable(self, write: Any) -> None:
        out, _ = write("runs/many", "--json", "--prompt", "né🙂", "--max-new-tokens", 3)
        assert "né🙂" in out
        assert json.loads(out)[0]["prompt"] == "né🙂"

    def test_a_file_gets_what_the_terminal_would(self, write: Any) -> None:
        shown, _ = write("runs/many", "--prompt", "né🙂", "--seed", 4, "--max-new-tokens", 50)
        out, err = write("runs/many", "--prompt", "né🙂", "--seed", 4, "--max-new-tokens", 50, "--out", "s.txt")
        assert out == ""
        assert "s.txt" in err
        assert Path("s.txt").read_bytes() == shown.encode("utf-8")

    def test_a_link_is_written_through_and_a_folder_refused(self, write: Any, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "target")
        write("--max-new-tokens", 5, "--out", tmp_path / "link")
        assert (tmp_path / "link").is_symlink()
        assert len((tmp_path / "target").read_text(encoding="utf-8")) == 6
        assert "this is a folder" in refused(write, "--out", tmp_path)
        assert "there is no folder" in refused(write, "--out", tmp_path / "none" / "s.txt")

    def test_a_dash_is_standard_output_and_a_prompt_is_not_written_over(self, write: Any) -> None:
        assert write("--seed", 1, "--max-new-tokens", 5, "--out", "-") == write("--seed", 1, "--max-new-tokens", 5)
        Path("mine.txt").write_text("the", encoding="utf-8")
        for option in ("--prompt-file", "--prompts-file"):
            message = refused(write, option, "mine.txt", "--out", Path("mine.txt").absolute())
            assert f"this is the {option}; name another place" in message

    def test_what_an_explicit_device_or_precision_became_is_said(self, write: Any) -> None:
        _, err = write("--precision", "fp16", "--device", "cpu", "--max-new-tokens", 2)
        assert "fp16 was asked for" in err
        first, second = err.splitlines()
        assert max(len(first), len(second)) <= 80
        assert write("--max-new-tokens", 2)[1] == ""


class TestThreads:
    @pytest.fixture(autouse=True)
    def two_threads(self) -> Iterator[None]:
        torch.set_num_threads(2)
        yield
        torch.set_num_threads(1)

    def test_one_small_text_is_written_by_one_thread_unless_there_are_more_or_it_is_asked_for(self, write: Any) -> None:
        short = ("--device", "cpu", "--max-new-tokens", 1)
        assert "cpu, 1 thread," in write(*short)[1]
        torch.set_num_threads(2)
        assert "cpu, 2 threads," in write(*short, "--num-samples", 2)[1]
        assert "cpu, 2 threads," in write(*short, "--threads", 2)[1]


class TestEndOfText:
    def test_it_is_never_shown_and_ends_a_sample_where_there_were_documents(self, write: Any) -> None:
        options = ("runs/many", "--json", "--num-samples", 20, "--seed", 1, "--max-new-tokens", 150)
        samples = json.loads(write(*options)[0])
        ended = [s for s in samples if s["reached_end"]]
        assert ended, "a model of many short documents ends some of them"
        assert all(s["tokens"] < 150 for s in ended)
        assert all("<|" not in s["text"] and 256 not in s["token_ids"] for s in samples)

    def test_ignoring_it_goes_on_to_exactly_n_tokens(self, write: Any) -> None:
        out, _ = write("runs/many", "--json", "--num-samples", 5, "--seed", 1, "--max-new-tokens", 150, "--ignore-end")
        for s in json.loads(out):
            assert s["tokens"] == 150
            assert 256 not in s["token_ids"]

    def test_where_there_was_one_document_it_is_never_drawn(self, write: Any) -> None:
        hot = ("--json", "--temperature", 50, "--seed", 1, "--max-new-tokens", 400)
        for more in ((), ("--ignore-end",)):
            (s,) = json.loads(write(*hot, *more)[0])
            assert s["tokens"] == len(s["text"]) == 400


class TestRuns:
    def test_without_a_run_it_is_the_newest(self, home: Path, write: Any) -> None:
        file = checkpoint_file(Path("runs/one"), 20)
        file.touch()
        newest = json.loads(succeed(home, "sample.py", "--json", "--max-new-tokens", "2").out)
        assert newest[0]["checkpoint"] == str(file)

    def test_a_checkpoint_file_is_enough(self, write: Any, tmp_path: Path) -> None:
        alone = shutil.copy(checkpoint_file(Path("runs/one"), 20), tmp_path / "model.pt")
        options = ("--seed", 1, "--max-new-tokens", 20)
        assert write(alone, *options) == write(*options)

    def test_the_last_checkpoint_can_be_asked_for(self, write: Any) -> None:
        assert json.loads(write("--json", "--checkpoint", "last", "--max-new-tokens", 1)[0])[0]["step"] == 20

    @pytest.mark.parametrize(("run", "message"), [("runs/on", "did you mean runs/one?"), ("runs", "not the folder")])
    def test_a_run_that_is_not_there_is_named(self, write: Any, run: str, message: str) -> None:
        assert message in refused(write, run)

    def test_a_damaged_checkpoint_is_named(self, write: Any, tmp_path: Path) -> None:
        whole = checkpoint_file(Path("runs/one"), 20).read_bytes()
        for content in (b"", whole[: len(whole) // 2], b"PK\x03\x04 this is no model"):
            (tmp_path / "model.pt").write_bytes(content)
            assert "model.pt: " in refused(write, tmp_path / "model.pt")


class TestProcess:
    def test_a_prompt_from_standard_input(self, home: Path) -> None:
        process = start(home, "sample.py", "runs/many", "--prompt-file", "-", stdin=subprocess.PIPE)
        finished = finish(process, "\ufeffï🙂\n".encode())
        assert finished.code == 0, finished.err
        assert finished.out.startswith("ï🙂\n")
        assert finished.err == ""

    def test_a_reader_that_goes_away_ends_it_quietly(self, home: Path) -> None:
        process = start(home, "sample.py", "runs/one", "--max-new-tokens", "1000000")
        assert process.stdout is not None
        assert process.stderr is not None
        assert len(process.stdout.read(10)) == 10
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == b""
        process.stderr.close()

    def test_characters_come_as_they_are_drawn_and_whole(self, home: Path) -> None:
        """A million tokens would take minutes; the first come at once, and never half an emoji."""
        process = start(home, "sample.py", "runs/many", "--ignore-end", "--max-new-tokens", "1000000", "--prompt", "🙂")
        assert process.stdout is not None
        text = ""
        while len(text) < 20:
            ready, _, _ = select.select([process.stdout], [], [], 30)
            assert ready, text
            text += os.read(process.stdout.fileno(), 4096).decode("utf-8")
        assert text.startswith("🙂")
        process.kill()
        finish(process)

    def test_a_mistake_is_one_line_and_exit_code_2(self, home: Path) -> None:
        commands = {
            "'é' at 3": ("runs/one", "--prompt", "café"),
            "--top-k": ("runs/one", "--top-k", "-3"),
            "--temperature": ("runs/one", "--temperature", "nan"),
            "runs/two: no such run": ("runs/two",),
        }
        with two_at_a_time() as call_later:
            processes = {message: call_later(home, "sample.py", *words) for message, words in commands.items()}
            for message, process in processes.items():
                assert message in process.result().error()
                assert process.result().out == ""
                assert len(process.result().err.splitlines()) == 1

    @pytest.mark.parametrize("as_json", [(), ("--json",)])
    def test_interrupting_it_keeps_what_there_is_in_the_file(
        self, home: Path, tmp_path: Path, as_json: tuple[str, ...]
    ) -> None:
        out = tmp_path / "out.txt"
        out.write_text("older", encoding="utf-8")
        endless = ("--max-new-tokens", "100000000", "--prompt", "the", "--device", "cpu")
        process = start(home, "sample.py", "runs/one", *endless, "--out", out, *as_json)
        assert process.stderr is not None
        assert process.stderr.readline().startswith(b"device")  # the last thing before it writes
        time.sleep(0.5)
        process.send_signal(2)
        finished = finish(process)
        assert finished.code == 130
        written = out.read_text(encoding="utf-8")
        if as_json:
            (text,) = json.loads(written)
            assert len(text["text"]) == len(text["token_ids"]) > 10
        else:
            assert written.startswith("the")
        assert "written to" in finished.err

    def test_streams_that_are_closed_are_no_fault_of_ours(self, home: Path, tmp_path: Path) -> None:
        command = f"{sys.executable} {ROOT / 'sample.py'} runs/one --max-new-tokens 5 --prompt the"
        for redirected, code, out, err in (
            (">&-", 2, "", "error: standard output is closed"),
            ("2>&-", 0, "the", ""),
            (f"--out {tmp_path / 'a.txt'} 2>&-", 0, "", ""),
            (f"--out {tmp_path / 'b.txt'} >&-", 0, "", "written to"),
        ):
            shell = ["sh", "-c", f"{command} {redirected}"]
            done = subprocess.run(shell, cwd=home, env=environment(), capture_output=True, text=True, check=False)
            assert (done.returncode, done.stdout[:3]) == (code, out)
            assert done.stderr.startswith(err)
        assert (tmp_path / "a.txt").read_text(encoding="utf-8").startswith("the")
        assert (tmp_path / "b.txt").read_text(encoding="utf-8").startswith("the")

    def test_interrupting_it_leaves_no_traceback(self, home: Path) -> None:
        process = start(home, "sample.py", "runs/one", "--max-new-tokens", "1000000")
        assert process.stdout is not None
        process.stdout.read(10)
        process.send_signal(2)
        finished = finish(process)
        assert finished.code == 130
        assert "Traceback" not in finished.err


def test_the_module_can_be_imported_without_doing_anything() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sample"], cwd=ROOT, env=environment(), capture_output=True, check=True
    )
    assert done.stdout == done.stderr == b""

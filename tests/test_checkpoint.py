"""The checkpoint file: exact there and back, and refused in one line where it is anything else than it was."""

import copy
import io
import math
import os
import random
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from data.tokenizer import ByteTokenizer
from engine.checkpoint import FORMAT, Checkpoint, finish_save, go_back, load_checkpoint, save_checkpoint, save_to_run
from engine.run_folder import Best
from errors import CheckpointError
from model import GPT

ROOT = Path(__file__).resolve().parents[1]
CPU = torch.device("cpu")
BOTH = pytest.mark.parametrize("architecture", ["qwen3", "gpt2"])


@pytest.fixture
def state(tiny):
    """A state after two steps."""
    state = tiny.state("model.dropout=0.1")
    tiny.train(state, 2)
    return state


@pytest.fixture
def file(tiny, state):
    """Its checkpoint."""
    path = tiny.folder / "step_00000002.pt"
    save_checkpoint(path, state.checkpoint({"metrics": 5, "samples": 7}))
    return path


def assert_same(ours, theirs):
    """Equal down to the bits of every tensor, whatever they are nested in."""
    if isinstance(ours, torch.Tensor):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert_same(ours[key], theirs[key])
    elif isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    else:
        assert ours == theirs


def assert_refused(path: Path, words: str = "") -> None:
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(path)
    message = str(error.value)
    assert str(path) in message
    assert words in message
    assert len(message.splitlines()) == 1
    assert len(message) < 700


def rewrite(path: Path, change) -> None:
    """Save what the file holds once more, with a change, and with checksums that are right."""
    content = torch.load(path, weights_only=True)
    torch.save(change(content) or content, path)


@BOTH
def test_everything_comes_back_as_it_was_saved(tiny, architecture):
    state = tiny.state(f"model.architecture={architecture}", "model.dropout=0.1")
    tiny.train(state, 2)
    state.progress.note_evaluation(2.5, 2.0)
    saved = copy.deepcopy(state.checkpoint({"metrics": 5, "samples": 7}))
    save_checkpoint(tiny.folder / "a.pt", saved)
    loaded = load_checkpoint(tiny.folder / "a.pt")
    assert loaded.step == 2
    assert loaded.config == state.config
    assert loaded.tokenizer.to_json() == state.prepared.tokenizer.to_json()
    for part in ("model", "data", "progress", "optimizers", "scaler", "generators"):
        assert_same(dict(getattr(loaded, part)) if part == "model" else getattr(loaded, part), getattr(saved, part))
    model = loaded.make_model(CPU)
    assert not model.training
    assert_same(dict(model.state_dict()), dict(state.model.state_dict()))


def test_the_file_holds_plain_tensors_and_plain_types_and_says_what_it_is(file):
    content = torch.load(file, weights_only=True)
    assert content["kind"] == "tiny-gpt checkpoint"
    assert content["format"] == FORMAT
    assert content["torch"] == torch.__version__
    assert {type(value) for value in content["model"].values()} == {torch.Tensor}
    assert {type(value) for value in content.values()} <= {str, int, dict, list}


def test_saving_again_replaces_the_file_and_leaves_nothing_beside_it(tiny, state, file):
    tiny.train(state, 1)
    save_checkpoint(file, state.checkpoint({}))
    assert load_checkpoint(file).step == 3
    assert [path.name for path in tiny.folder.glob("*.pt")] == [file.name]
    assert not list(tiny.folder.glob(".*"))


SAVE_ON_A_FULL_DISK = """
import resource, sys
from pathlib import Path
from engine.checkpoint import load_checkpoint, save_checkpoint
from errors import CheckpointError

path = Path(sys.argv[1])
checkpoint = load_checkpoint(path)
for limit in (0, 100, 20_000, path.stat().st_size - 1):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        save_checkpoint(path, checkpoint)
    except CheckpointError as error:
        print(error)
"""


def test_a_disk_that_is_full_keeps_the_old_file_and_says_so(file):
    before = file.read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", SAVE_ON_A_FULL_DISK, file], cwd=ROOT, capture_output=True, text=True, check=True
    )
    expected = (
        f"{file}: could not be written: File too large; what was there before is untouched; make room and try again\n"
    )
    assert done.stdout == expected * 4
    assert file.read_bytes() == before
    assert not list(file.parent.glob(".*"))


def test_a_file_cut_short_anywhere_is_refused(file):
    content = file.read_bytes()
    for length in (0, 1, 3, 4, 30, 1000, len(content) // 2, len(content) - 22, len(content) - 1):
        file.write_bytes(content[:length])
        assert_refused(file, "damaged, or not a checkpoint of this program; there is no other beside it")


def test_a_changed_byte_is_noticed_wherever_it_matters(file):
    whole, content = torch.load(file, weights_only=True), file.read_bytes()
    chance, messages = random.Random(1), []
    for _ in range(150):
        damaged = bytearray(content)
        damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        file.write_bytes(damaged)
        try:
            load_checkpoint(file)
        except CheckpointError as error:
            messages.append(str(error))
        else:  # a byte of padding, or of a date
            assert_same(torch.load(file, weights_only=True), whole)
    assert len(messages) > 50
    assert all(len(message.splitlines()) == 1 for message in messages)


def test_a_changed_weight_is_noticed(file):
    weight = torch.load(file, weights_only=True)["model"]["blocks.0.attention.qkv.weight"].numpy().tobytes()
    content = bytearray(file.read_bytes())
    content[content.index(weight) + 41] ^= 1
    file.write_bytes(content)
    assert_refused(file, "damaged")


def test_files_of_other_kinds_are_refused(tiny, file):
    folder = tiny.folder
    others = {
        "text.pt": b"To be, or not to be",
        "zero.pt": bytes(4096),
        "noise.pt": random.Random(0).randbytes(4096),
        "pickle.pt": b"\x80\x04K\x01.",
    }
    for name, content in others.items():
        (folder / name).write_bytes(content)
        assert_refused(folder / name, "damaged, or not a checkpoint of this program")
    with zipfile.ZipFile(folder / "other.zip", "w") as archive:
        archive.writestr("data.pkl", "no pickle")
    assert_refused(folder / "other.zip", "not a checkpoint of this program")
    (folder / "folder.pt").mkdir()
    assert_refused(folder / "folder.pt", "Is a directory")
    assert_refused(folder / "missing.pt", "No such file")
    for content in (torch.zeros(3), {"w": torch.zeros(3)}, [1], "text", None, {1: 2}, {"kind": "other", "format": 1}):
        torch.save(content, folder / "foreign.pt")
        assert_refused(folder / "foreign.pt", "not a checkpoint of this program")
    torch.save({"w": torch.zeros(3)}, folder / "old.pt", _use_new_zipfile_serialization=False)
    assert_refused(folder / "old.pt", "not a checkpoint of this program")


def test_the_newest_other_one_that_is_whole_is_offered(tiny, state, file):
    for step in (1, 5, 20, 30):
        state.progress.step = step
        save_checkpoint(file.parent / f"step_{step:08d}.pt", state.checkpoint({}))
    for step in (2, 20, 30):
        (file.parent / f"step_{step:08d}.pt").write_bytes(b"")
    whole = file.parent / "step_00000005.pt"
    assert_refused(file, f"the newest whole one is {whole}: name it instead, as RUN or with --checkpoint")
    with pytest.raises(CheckpointError, match=rf"damaged.*; take {whole}$"):
        load_checkpoint(file, offer=lambda path: f"take {path}")
    assert_refused(file.parent / "step_00000099.pt", f"No such file or directory; the newest whole one is {whole}")
    for step in (1, 5):
        (file.parent / f"step_{step:08d}.pt").write_bytes(b"PK")
    assert_refused(file, "nor can another one beside it be used (step_00000030.pt, step_00000020.pt, step_00000005.pt")


class Hostile:
    """Whoever unpickles it makes a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return (os.mkdir, (str(self.target),))


def test_a_hostile_file_executes_nothing(tiny, file):
    target = tiny.folder / "broken-into"
    content = torch.load(file, weights_only=True)
    for hostile in (Hostile(target), {**content, "progress": Hostile(target)}, {**content, "extra": Hostile(target)}):
        for new in (True, False):
            torch.save(hostile, file, _use_new_zipfile_serialization=new)
            assert_refused(file, "damaged, or not a checkpoint of this program")
    assert not target.exists()


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(file):
    packed = io.BytesIO()
    with zipfile.ZipFile(file) as plain, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry in plain.infolist():
            archive.writestr(entry.filename, plain.read(entry))
    file.write_bytes(packed.getvalue())
    assert_refused(file, "damaged")


def test_another_format_older_or_newer_is_refused_by_name(file):
    for version in (FORMAT + 1, FORMAT - 1, 0, "1", True, None, [1] * 1000, torch.zeros(0)):
        rewrite(file, lambda content, version=version: {**content, "format": version})
        assert_refused(file, f"but this version reads {FORMAT}; use the version that wrote it")


PARTS = ["step", "config", "tokenizer", "model", "data", "progress", "optimizers", "scaler", "generators"]


@pytest.mark.parametrize("part", PARTS)
def test_a_missing_or_mistyped_part_is_refused_by_name(file, part):
    original = file.read_bytes()
    rewrite(file, lambda content: content.pop(part) and None)
    assert_refused(file, f"({part}: Field required)")
    for value in (None, 1.5, b"bytes", True, {"a", "b"}, torch.zeros(2), (), {1: 1}, {"a": {"b": [None]}}):
        file.write_bytes(original)
        rewrite(file, lambda content, value=value: {**content, part: value})
        assert_refused(file)


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("data", {"fingerprint": 5}),
        ("data", {"num_documents": 0}),
        ("data", {"num_documents": "2"}),
        ("data", {"start_id": -1}),
        ("data", {"start_id": 100_000}),
        ("data", {"start_id": None}),
        ("progress", {"step": 3}),
        ("progress", {"step": None}),
        ("progress", {"seconds": math.nan}),
        ("progress", {"best_step": "2"}),
        ("progress", {"best_step": 1, "best_val_loss": math.nan}),
        ("progress", {"best_val_loss": None}),
        ("progress", {"losses": [1, 2]}),
        ("progress", {"losses": {"sum": 1.0}}),
        ("progress", {"losses": {"sum": "x", "steps": 1}}),
        ("progress", {"file_sizes": {"metrics": 1.5}}),
        ("progress", {"file_sizes": {"metrics": None}}),
        ("model", {"lm_head.weight": [1.0]}),
        ("model", {"lm_head.weight": torch.zeros(3, dtype=torch.int64)}),
        ("data", {"num_documents": 2**64}),
        ("progress", {"best_step": 10**600}),
        ("generators", {"windows": "state"}),
        ("generators", {"windows": torch.zeros(5)}),
        ("generators", {"cpu": torch.zeros(5, 5, dtype=torch.uint8)}),
        ("scaler", {"scale": "large"}),
        ("scaler", {"scale": torch.zeros(2)}),
        ("config", {"seed": "x"}),
        ("config", {"seed": torch.zeros(2)}),
        ("config", {"model": 5}),
        ("config", {"model": {"d_model": 7, "num_heads": 2}}),
        ("config", {"unknown": {"deep": [1] * 500}}),
        ("config", {5: 5}),
    ],
)
def test_a_wrong_value_inside_of_a_part_is_refused(file, part, changes):
    rewrite(file, lambda content: {**content, part: {**content[part], **changes}})
    assert_refused(file, "not as it was written")


@pytest.mark.parametrize("value", [None, 5, [5], torch.zeros(2), {"a": 1}, {5: torch.zeros(2)}, {0: {"step": 5}}])
@pytest.mark.parametrize("part", ["state", "param_groups"])
def test_an_optimizer_of_the_wrong_kind_is_refused(file, part, value):
    rewrite(file, lambda content: content["optimizers"][1].update({part: value}))
    assert_refused(file, f"(optimizers.1.{part}")


@pytest.mark.parametrize("tokenizer", ["", "{}", "[1]", '{"format": 1, "kind": "word"}', "x" * 5000, "[" * 100_000])
def test_a_tokenizer_that_is_none_is_refused(file, tokenizer):
    rewrite(file, lambda content: {**content, "tokenizer": tokenizer})
    assert_refused(file, "not as it was written")


def test_another_tokenizer_does_not_fit_the_weights(file):
    rewrite(file, lambda content: {**content, "tokenizer": ByteTokenizer().to_json()})
    with pytest.raises(CheckpointError, match="weights, but the model that its config describes has"):
        load_checkpoint(file).make_model(CPU)


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "_orig_mod.module.", "module._orig_mod."])
def test_weights_of_a_wrapped_model_are_taken_as_its_own(file, state, prefix):
    expected = dict(state.model.state_dict())
    rewrite(file, lambda content: {**content, "model": {prefix + name: w for name, w in content["model"].items()}})
    assert_same(dict(load_checkpoint(file).make_model(CPU).state_dict()), expected)


def test_weights_of_other_precision_become_fp32(file, state):
    expected = {name: weight.bfloat16().float() for name, weight in state.model.state_dict().items()}
    rewrite(file, lambda content: {**content, "model": {n: w.bfloat16() for n, w in content["model"].items()}})
    assert_same(dict(load_checkpoint(file).make_model(CPU).state_dict()), expected)


def refused_weights(file: Path, change, words: str) -> None:
    rewrite(file, lambda content: {**content, "model": change(content["model"])})
    checkpoint = load_checkpoint(file)
    with pytest.raises(CheckpointError, match=words) as error:
        checkpoint.make_model(CPU)
    assert str(error.value).startswith(f"{file}: ")
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("damage", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_refused_by_name_and_step(file, damage):
    def change(weights):
        weights["blocks.1.norm_1.weight"][3] = damage
        return weights

    refused_weights(file, change, r"'blocks\.1\.norm_1\.weight' at step 2 is not finite; use an earlier checkpoint")


def test_weights_of_other_names_or_shapes_are_refused(file):
    original = file.read_bytes()
    name = "blocks.0.attention.qkv.weight"
    changes = {
        "renamed": lambda weights: {"other" if key == name else key: w for key, w in weights.items()},
        "turned": lambda weights: {key: w.T.contiguous() if key == name else w for key, w in weights.items()},
        "missing": lambda weights: {key: w for key, w in weights.items() if key != name},
        "none": lambda weights: {},
        "more": lambda weights: {**weights, "other": torch.zeros(5)},
        "untied": lambda weights: {key: w for key, w in weights.items() if key != "lm_head.weight"},
    }
    for change in changes.values():
        file.write_bytes(original)
        refused_weights(file, change, "the model that its config describes")


def test_a_config_of_a_giant_takes_no_memory(file):
    rewrite(file, lambda content: content["config"]["model"].update(num_layers=10**9, d_model=10**6))
    checkpoint = load_checkpoint(file)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match="weights, but the model that its config describes has"):
        checkpoint.make_model(CPU)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB


def test_a_checkpoint_that_was_never_saved_is_called_by_its_step(state):
    checkpoint = state.checkpoint({})
    assert isinstance(checkpoint, Checkpoint)
    with pytest.raises(CheckpointError, match=r"^checkpoint of step 2: weight 'blocks\.2\."):
        checkpoint.fitting_weights(GPT(state.config.model.model_copy(update={"num_layers": 3}), 30))


def test_a_run_keeps_its_newest_and_its_best_and_knows_which_that_is(tiny):
    state, run = tiny.state(), tiny.run()
    for step, val_loss in enumerate((3.0, 2.0, 2.5, 2.6, math.nan, 2.7)):
        state.progress.step = step
        state.progress.note_evaluation(val_loss, 1.0)
        assert save_to_run(run, state.checkpoint({}), keep=2) == run.checkpoint_file(step)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == [f"step_{step:08d}.pt" for step in (1, 4, 5)]
    assert run.best() == Best(1, 2.0)
    assert load_checkpoint(run.find("best")).step == 1
    assert load_checkpoint(run.find("last")).progress["best_step"] == 1


def test_a_best_that_was_saved_but_not_noted_is_noted_with_the_next_checkpoint(tiny):
    state, run = tiny.state(), tiny.run()
    state.progress.note_evaluation(1.0, 1.0)
    save_checkpoint(run.checkpoint_file(0), state.checkpoint({}))
    run.best_file.write_text("torn", encoding="utf-8")
    state.progress.step = 5
    save_to_run(run, state.checkpoint({}), keep=1)
    assert run.best() == Best(0, 1.0)
    assert run.find("best") == run.checkpoint_file(0)
    assert run.find("last") == run.checkpoint_file(5)


def test_going_back_sets_aside_what_came_later_and_says_so(tiny):
    state, run, said = tiny.state(), tiny.run(), []
    for step, val_loss in ((3, 2.0), (4, 2.1)):
        state.progress.step = step
        state.progress.note_evaluation(val_loss, 1.0)
        save_to_run(run, state.checkpoint({}), keep=5)
    earlier = load_checkpoint(run.checkpoint_file(2)).progress
    go_back(run, earlier, said.append)
    assert said == [
        "back     to step 2: what came later is kept as step_00000003.old.pt, step_00000004.old.pt; "
        "metrics.jsonl and samples.txt are cut back"
    ]
    assert run.find("last") == run.checkpoint_file(2)
    assert load_checkpoint(run.find("best")).step == 3, "no later evaluation was as good"
    go_back(run, earlier, said.append)
    assert len(said) == 1


def test_going_back_forgets_the_id_on_wandb_before_anything_else(tiny):
    run = tiny.run()
    run.wandb.mkdir()
    run.wandb_id_file.write_text("a-1", encoding="utf-8")
    run.best_file.write_text('{"step": 2, "val_loss": 0.1}', encoding="utf-8")
    run.best_file.with_name(f".{run.best_file.name}.{os.getpid()}.tmp").mkdir()  # so that it ends in the middle
    with pytest.raises(CheckpointError, match="could not be written"):
        go_back(run, load_checkpoint(run.checkpoint_file(1)).progress, print)
    assert run.checkpoint_file(2).exists()
    assert not run.wandb_id_file.exists()


def test_a_best_that_is_damaged_is_no_longer_the_best_when_a_run_goes_back(tiny):
    run = tiny.run()
    run.checkpoint_file(2).write_bytes(b"")
    run.best_file.write_text('{"step": 2, "val_loss": 0.1}', encoding="utf-8")
    go_back(run, load_checkpoint(run.checkpoint_file(1)).progress, print)
    assert run.best() == Best(1, 2.5)
    assert run.find("last") == run.find("best") == run.checkpoint_file(1)


def test_what_a_killed_process_left_undone_after_its_save_is_done_later(tiny):
    state, run = tiny.state(), tiny.run()
    state.progress.step = 9
    state.progress.note_evaluation(1.0, 1.0)
    save_checkpoint(run.checkpoint_file(9), state.checkpoint({}))
    half = run.checkpoints / ".step_00000010.pt.77.tmp"
    half.touch()
    finish_save(run, vars(state.progress), keep=1)
    assert run.best() == Best(9, 1.0)
    assert [path.name for path in run.checkpoints.iterdir()] == ["step_00000009.pt"]

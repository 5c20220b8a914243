"""Recipes and overrides become settings; every mistake in them is one clear line."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config.describe import SECTIONS, SETTINGS
from config.load import (
    changed_settings,
    config_from_dict,
    config_to_dict,
    config_to_yaml,
    describe_settings,
    load_config,
    nearest,
)
from config.schema import Config, ModelConfig
from errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]
RECIPES = sorted((ROOT / "config").glob("*.yaml"))


@pytest.fixture
def recipe(tmp_path):
    """Writes a recipe and gives its path."""

    def write(content):
        path = tmp_path / "x.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return path

    return write


def problems_of(*arguments, **named):
    with pytest.raises(ConfigError) as caught:
        load_config(*arguments, **named)
    return str(caught.value).splitlines()


def changed(*arguments):
    return {key: new for key, _, new in changed_settings(Config(), load_config(*arguments))}


def test_recipe_beats_default_and_override_beats_recipe_and_later_override_beats_earlier(recipe):
    path = recipe("seed: 1\nmodel:\n  num_layers: 2\n  dropout: 0.1\n")
    config = load_config(path, ["seed=2", "model.dropout=0.2", "model.dropout=0.3"])
    assert (config.seed, config.model.num_layers, config.model.dropout) == (2, 2, 0.3)
    assert config.model.num_heads == ModelConfig().num_heads


def test_a_base_takes_the_place_of_the_defaults(recipe):
    base = Config(seed=7, model=ModelConfig(num_layers=9))
    config = load_config(recipe("seed: 8"), ["model.dropout=0.5"], base=base)
    assert (config.seed, config.model.num_layers, config.model.dropout) == (8, 9, 0.5)


@pytest.mark.parametrize("content", ["", "# nothing\n", "null", "---\n", "\ufeff", "model:\ndata: ~\n", "{}"])
def test_an_empty_recipe_or_section_is_all_defaults(recipe, content):
    assert load_config(recipe(content)) == Config()


def test_a_recipe_may_begin_with_a_byte_order_mark(recipe):
    assert load_config(recipe(b"\xef\xbb\xbfseed: 3\r\n")).seed == 3


@pytest.mark.parametrize("text", ["1e-3", "1.0e-3", "0.001", "1E-3", ".001"])
def test_a_number_means_the_same_in_a_recipe_and_on_the_command_line(recipe, text):
    assert load_config(recipe(f"optim:\n  learning_rate: {text}\n")).optim.learning_rate == 0.001
    assert load_config(None, [f"optim.learning_rate={text}"]).optim.learning_rate == 0.001


def test_text_settings_take_what_looks_like_something_else(recipe):
    path = recipe("name: 012\ndata:\n  source: no\ntracking: {wandb_project: 1e-3}\ntrain: {sample_prompt: 'null'}\n")
    assert changed(path) == {
        "name": "012",
        "data.source": "no",
        "tracking.wandb_project": "1e-3",
        "train.sample_prompt": "null",
    }


@pytest.mark.parametrize("word", ["null", "None", "none", "~", "NULL"])
def test_null_turns_off_what_can_be_off_in_a_recipe_and_on_the_command_line(recipe, word):
    assert changed(recipe(f"optim: {{grad_clip: {word}}}\ntrain: {{patience: {word}}}")) == {"optim.grad_clip": None}
    assert changed(None, [f"optim.grad_clip={word}", f"train.sample_prompt={word}"]) == {"optim.grad_clip": None}


def test_null_where_there_must_be_a_value_is_refused(recipe):
    assert problems_of(recipe("runs_dir:\nmodel: {dropout: null}")) == [
        f"runs_dir must be text that is not blank, got null ({recipe('').parent / 'x.yaml'}:1)",
        f"model.dropout must be a number of at least 0 and below 1, got null ({recipe('').parent / 'x.yaml'}:2)",
    ]


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("train.sample_prompt=a=b", "train.sample_prompt", "a=b"),
        ("train.sample_prompt= a: [b ", "train.sample_prompt", " a: [b "),
        ("train.sample_prompt=[INST]", "train.sample_prompt", "[INST]"),
        ("train.sample_prompt=", "train.sample_prompt", ""),
        ('train.sample_prompt="null"', "train.sample_prompt", "null"),
        ('train.sample_prompt="a\\nb"', "train.sample_prompt", "a\nb"),
        ('train.sample_prompt="Yes," he said', "train.sample_prompt", '"Yes," he said'),
        ('train.sample_prompt="Yes": no', "train.sample_prompt", '"Yes": no'),
        ("train.sample_prompt=# x", "train.sample_prompt", "# x"),
        ("name=012", "name", "012"),
        ("name='null'", "name", "null"),
        ("data.source=no", "data.source", "no"),
        ("data.source=a b.txt", "data.source", "a b.txt"),
        ("data.source=[a.txt, 012, 'c, d']", "data.source", ["a.txt", "012", "c, d"]),
        ("data.source='[a]*.txt'", "data.source", "[a]*.txt"),
        ("runs_dir=null", "runs_dir", "null"),
        ("--model.d_model=64", "model.d_model", 64),
        ("--seed=3", "seed", 3),
        ("model.dropout= 0.5 ", "model.dropout", 0.5),
        ("train.max_steps=1e4", "train.max_steps", 10_000),
        ("train.max_steps=10_000", "train.max_steps", 10_000),
        ("model.tie_embeddings=false", "model.tie_embeddings", False),
        ("model.tie_embeddings=False", "model.tie_embeddings", False),
        ("runtime.compile=true", "runtime.compile", True),
        ("model.architecture=gpt2", "model.architecture", "gpt2"),
    ],
)
def test_an_override_is_split_at_the_first_equals_sign_and_read_as_its_setting_needs(override, key, value):
    assert changed(None, [override]) == {key: value}


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("optim.learning_rate=fast", "optim.learning_rate must be a number above 0, got 'fast'"),
        ("optim.learning_rate=nan", "optim.learning_rate must be a number above 0, got 'nan'"),
        ("optim.learning_rate=.nan", "optim.learning_rate must be a number above 0, got nan"),
        ("optim.learning_rate=1e999", "optim.learning_rate must be a number above 0, got inf"),
        ("optim.grad_clip=", "optim.grad_clip must be a number above 0, or null, got ''"),
        ("model.d_model=64.0", "model.d_model must be an integer of at least 1, got 64.0"),
        ("model.d_model=true", "model.d_model must be an integer of at least 1, got true"),
        ("model.tie_embeddings=yes", "model.tie_embeddings must be true or false, got 'yes'"),
        ("model.tie_embeddings=1", "model.tie_embeddings must be true or false, got 1"),
        ("learning_rate=1e-3", "learning_rate is not a setting; did you mean optim.learning_rate?"),
        ("--optim.lr=1e-3", "optim.lr is not a setting; did you mean optim.learning_rate?"),
        ("model=gpt2", "model must be a section with settings such as model.architecture, got 'gpt2'"),
        ("quick", "'quick' is not of the form section.key=value"),
        ("model.dmodel", "'model.dmodel' is not of the form section.key=value; did you mean model.d_model=VALUE?"),
        ("data.source=[]", "data.source must be text that is not blank, or a list of such texts, got []"),
        (
            "data.source=[a, [b]]",
            "data.source must be text that is not blank, or a list of such texts, got ['a', [...]]",
        ),
    ],
)
def test_a_wrong_override_is_said_in_one_line(override, problem):
    assert problems_of(None, [override]) == [f"{problem} (command line)"]


def test_a_list_without_an_end_is_no_file_name():
    (problem,) = problems_of(None, ["data.source=[a, b"])
    assert problem.startswith("data.source: '[a, b' begins like a list but is none: command line:1:6")


def test_all_problems_are_reported_at_once_each_with_its_place(recipe):
    path = recipe(
        "seed: -1\nmodel:\n  n_layer: 3\n  dropout: x\noptim: fast\nlearning_rate: 1\ntrain:\n  seed: 1\n  seed: 2\n"
    )
    assert problems_of(path, ["foo=1", "model.num_heads=3"]) == [
        f"model.n_layer is not a setting; did you mean model.num_layers? ({path}:3)",
        f"optim must be a section with settings such as optim.optimizer, got 'fast' ({path}:5)",
        f"learning_rate is not a setting; did you mean optim.learning_rate? ({path}:6)",
        f"train.seed is not a setting; did you mean seed? ({path}:8)",
        f"train.seed is set twice, in line 8 already ({path}:9)",
        "foo is not a setting; the sections are model, data, train, optim, runtime, tracking; "
        "--help lists all settings (command line)",
        f"seed must be an integer of at least 0 and at most {2**63 - 1}, got -1 ({path}:1)",
        f"model.dropout must be a number of at least 0 and below 1, got 'x' ({path}:4)",
        "model.d_model (128) must be a multiple of model.num_heads (3); try model.d_model=126 or "
        "model.d_model=132 or model.num_heads=2 or model.num_heads=4 (command line)",
    ]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("seed: 1\nseed: 2", "seed is set twice, in line 1 already ({path}:2)"),
        ("model: {}\nmodel: {}", "model is set twice, in line 1 already ({path}:2)"),
        (
            "optim:\n  beta1: 0\n  'beta1': 0",
            "optim.beta1 is set twice, in line 2 already ({path}:3)",
        ),
        (
            "optim.beta1: 0",
            "optim.beta1 is not a setting; write beta1 inside of the section optim: ({path}:1)",
        ),
        ("model: [1]", "model must be a section with settings such as model.architecture, got [1] ({path}:1)"),
        ("optim: {<<: {beta1: 0}}", "merge keys (<<) are not part of recipes; write the settings out ({path}:1)"),
        ("optim: {beta1: {a: 1}}", "optim.beta1 must be a number of at least 0 and below 1, got {{...}} ({path}:1)"),
        ("- a", "{path}: not a recipe, it holds no settings such as 'seed: 1'; {hint}"),
        ("Once upon a time", "{path}: not a recipe, it holds no settings such as 'seed: 1'; {hint}"),
        ("x" * 100_001, "{path}: not a recipe, it has more than 100000 bytes; {hint}"),
        (b"seed: \xff", "{path}: not a recipe, it is not UTF-8 at byte 6; {hint}"),
        ("seed: [1", "{path}:1:9: not valid YAML: while parsing a flow sequence, expected ',' or ']', {got}"),
    ],
)
def test_a_wrong_recipe_is_said_in_one_line(recipe, content, problem):
    path = recipe(content)
    hint = f"to train on it as a text: data.source={path}"
    got = "but got '<stream end>'"
    assert problems_of(path) == [problem.format(path=path, hint=hint, got=got)]


def test_a_recipe_that_does_not_exist_leads_to_those_that_do(monkeypatch):
    monkeypatch.chdir(ROOT)
    (problem,) = problems_of(Path("config/shakespear_gpu.yaml"))
    assert problem.startswith(
        "config/shakespear_gpu.yaml: no such recipe; did you mean config/shakespeare_char_gpu.yaml? "
    )
    for path in RECIPES:
        assert str(path.relative_to(ROOT)) in problem


def test_a_folder_is_no_recipe_and_a_run_is_resumed(tmp_path):
    assert problems_of(tmp_path) == [f"{tmp_path}: a folder, not a recipe; name a YAML file"]
    (tmp_path / "config.yaml").write_text("seed: 1", encoding="utf-8")
    assert problems_of(tmp_path) == [f"{tmp_path}: a folder, not a recipe; to go on with that run: --resume {tmp_path}"]


def test_a_recipe_that_cannot_be_read_says_why(recipe):
    path = recipe("seed: 1") / "y.yaml"
    assert problems_of(path) == [f"{path}: cannot be read: Not a directory"]


def test_plain_values_make_the_same_config_again():
    config = Config(name="no", seed=3, model=ModelConfig(dropout=0.25))
    assert config_from_dict(config_to_dict(config), "checkpoint") == config
    assert config_from_dict({}, "checkpoint") == config_from_dict({"model": None}, "checkpoint") == Config()


def test_wrong_plain_values_are_reported_with_their_origin():
    with pytest.raises(ConfigError) as caught:
        config_from_dict({"seed": "1", "model": 3, "optim": {"lr": 1, "beta1": True}, 5: 6}, "last.pt")
    assert str(caught.value).splitlines() == [
        "model must be a section with settings such as model.architecture, got 3 (last.pt)",
        "optim.lr is not a setting; did you mean optim.learning_rate? (last.pt)",
        "5 is not a setting; the sections are model, data, train, optim, runtime, tracking; "
        "--help lists all settings (last.pt)",
        f"seed must be an integer of at least 0 and at most {2**63 - 1}, got '1' (last.pt)",
        "optim.beta1 must be a number of at least 0 and below 1, got true (last.pt)",
    ]


def test_changed_settings_are_listed_with_both_values():
    new = load_config(None, ["seed=1", "optim.grad_clip=null"])
    assert changed_settings(Config(), new) == [("seed", 1337, 1), ("optim.grad_clip", 1.0, None)]
    again = load_config(None, ["seed=1", "optim.grad_clip=null", "optim.learning_rate=0.001"])
    assert changed_settings(new, again) == []


TEXTS = st.text(min_size=1).filter(lambda text: text.strip() and "\0" not in text)
NAMES = st.none() | st.sampled_from(["no", "1e-3", "012", "null", "None", "true", "~", "é🙂", "-", "[a]", "a, b"])
PROMPTS = st.none() | st.text() | st.sampled_from(["no", "1e-3", "012", "null", "none", "a\nb\r\n\tc", "😀", '"', "'"])
SETTING_VALUES = {
    "name": NAMES,
    "runs_dir": TEXTS,
    "seed": st.integers(0, 2**63 - 1),
    "model.dropout": st.floats(0, 1, exclude_max=True),
    "model.tie_embeddings": st.booleans(),
    "model.d_ff": st.none() | st.integers(1, 10**9),
    "data.source": TEXTS | st.lists(TEXTS, min_size=1, max_size=4),
    "train.sample_prompt": PROMPTS,
    "optim.learning_rate": st.floats(1e-3, 1e300),
    "optim.min_learning_rate": st.floats(0, 1e-3),
    "optim.grad_clip": st.none() | st.floats(5e-324, allow_infinity=False),
    "runtime.compile": st.sampled_from(["auto", True, False]),
}


@settings(deadline=None)
@given(values=st.fixed_dictionaries({}, optional=SETTING_VALUES))
def test_a_config_written_as_yaml_loads_as_the_same_config(tmp_path_factory, values):
    nested = {section: {} for section in SECTIONS}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        (nested[section] if section else nested)[name] = value
    config = config_from_dict(nested, "test")
    path = tmp_path_factory.getbasetemp() / "round_trip.yaml"
    path.write_bytes(config_to_yaml(config).encode("utf-8"))
    assert load_config(path) == config


KEYS = st.sampled_from([*SETTINGS, *SECTIONS, *(key.rpartition(".")[2] for key in SETTINGS)]) | st.text()
LITERALS = st.sampled_from(
    ["1", "1e-3", "-1", "null", "true", "[a, b]", "[", "{a: 1}", '"x', "&a", "*a", "", ".nan", "!x"]
)
OVERRIDES = st.builds("{}{}={}".format, st.sampled_from(["", "--"]), KEYS, LITERALS | st.text()) | st.text()


@settings(deadline=None)
@given(st.lists(OVERRIDES, max_size=6))
def test_any_overrides_give_a_config_or_a_config_error(overrides):
    with suppress(ConfigError):
        assert isinstance(load_config(None, overrides), Config)


LINES = st.builds("{}{}: {}".format, st.sampled_from(["", "  "]), KEYS, LITERALS | st.text(max_size=5))


@settings(deadline=None)
@given(st.lists(LINES, max_size=8).map("\n".join).map(lambda text: text.encode("utf-8")) | st.binary())
def test_any_recipe_gives_a_config_or_a_config_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(content)
    with suppress(ConfigError):
        assert isinstance(load_config(path), Config)


def test_a_wrong_recipe_is_reported_within_a_second_and_without_torch(recipe):
    program = (
        "import pathlib, sys, time\n"
        "from config.load import load_config\n"
        "from errors import ConfigError\n"
        "try:\n"
        f"    load_config(pathlib.Path({str(recipe('learing_rate: 1'))!r}))\n"
        "except ConfigError as error:\n"
        "    print(error)\n"
        "heavy = {'torch', 'numpy', 'wandb', 'tiktoken', 'transformers', 'tqdm'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        # Processor time, so that other tests running at the same time do not count.
        "print(time.process_time())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    problem, heavy, seconds = done.stdout.splitlines()
    assert problem.startswith("learing_rate is not a setting; did you mean optim.learning_rate?")
    assert heavy == "[]"
    assert float(seconds) < 1


def test_the_helpers_of_the_commands_are_at_hand():
    assert nearest("traim", ["train"]) == "train"
    assert "model.d_model=128" in describe_settings()

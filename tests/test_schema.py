"""The schema: which values each setting takes, and which settings must fit each other."""

import pytest
from pydantic import ValidationError

from config.schema import Config, DataConfig, ModelConfig, OptimConfig, RuntimeConfig, TrackingConfig, TrainConfig
from config.values import MAX_COUNT


def message_of(section, **values):
    with pytest.raises(ValidationError) as caught:
        section(**values)
    return caught.value.errors()[0]["msg"]


def test_a_model_is_described_by_plain_keyword_arguments():
    config = ModelConfig(architecture="gpt2", context_length=8, d_model=16, num_heads=2, num_layers=2)
    assert (config.head_size, config.feed_forward_width) == (8, 64)


@pytest.mark.parametrize(("architecture", "width"), [("gpt2", 64), ("qwen3", 48)])
def test_the_feed_forward_width_is_the_usual_one_of_the_architecture(architecture, width):
    assert ModelConfig(architecture=architecture, d_model=16, num_heads=2).feed_forward_width == width


def test_a_given_feed_forward_width_is_used():
    assert ModelConfig(d_model=16, num_heads=2, d_ff=40).feed_forward_width == 40


def test_every_setting_has_a_meaning():
    for name, section in Config.model_fields.items():
        fields = getattr(section.annotation, "model_fields", {name: section})
        assert [key for key, field in fields.items() if not field.description] == []


def test_a_config_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        Config().seed = 1
    with pytest.raises(ValidationError, match="frozen"):
        Config().model.d_model = 1


def test_an_unknown_setting_is_refused():
    assert "not permitted" in message_of(ModelConfig, n_layer=3)


@pytest.mark.parametrize("value", [True, "4", 4.0, None, [4]])
def test_an_integer_is_never_made_of_something_else(value):
    message_of(ModelConfig, num_layers=value)


@pytest.mark.parametrize("value", [True, "0.1", None, float("nan"), float("inf"), 10**400])
def test_a_number_is_finite_and_never_made_of_something_else(value):
    message_of(ModelConfig, dropout=value)
    message_of(OptimConfig, learning_rate=value)


def test_an_integer_is_a_number():
    dropout = ModelConfig(dropout=0).dropout
    assert (dropout, type(dropout)) == (0.0, float)


@pytest.mark.parametrize("value", [1, "true", "yes", None])
def test_a_switch_is_true_false_or_auto(value):
    message_of(RuntimeConfig, compile=value)
    assert [RuntimeConfig(compile=choice).compile for choice in (True, False, "auto")] == [True, False, "auto"]


@pytest.mark.parametrize(
    ("section", "name", "good", "bad"),
    [
        (ModelConfig, "context_length", [1, MAX_COUNT], [0, -1, MAX_COUNT + 1]),
        (ModelConfig, "num_layers", [1], [0]),
        (ModelConfig, "d_ff", [1, None], [0, "none"]),
        (ModelConfig, "dropout", [0, 0.999], [1, 1.0, -0.1]),
        (TrainConfig, "max_minutes", [None, 1e-3, 10, 1e6], [0, -1, 1.1e6, float("inf"), "10"]),
        (TrainConfig, "max_steps", [1, MAX_COUNT], [0, MAX_COUNT + 1, 1.5]),
        (DataConfig, "val_fraction", [1e-9, 0.999], [0, 1, 1.5]),
        (OptimConfig, "learning_rate", [1e-9, 10], [0, -1e-3]),
        (OptimConfig, "weight_decay", [0], [-0.1]),
        (OptimConfig, "beta1", [0, 0.999], [1, -0.1]),
        (OptimConfig, "beta2", [0, 0.999], [1, -0.1]),
        (OptimConfig, "grad_clip", [None, 0.1], [0, -1]),
        (OptimConfig, "warmup_steps", [0, 10**6], [-1, 0.5]),
        (OptimConfig, "optimizer", ["muon", "adamw"], ["adam", None]),
        (RuntimeConfig, "threads", [None, 1], [0]),
        (RuntimeConfig, "device", ["auto", "cpu", "cuda", "cuda:1", "mps"], ["gpu", "cuda:", "cuda:-1", "cpu\n"]),
        (TrackingConfig, "wandb", ["offline", "online", "disabled"], ["on", True]),
        (TrackingConfig, "wandb_project", ["tiny-gpt", "my project"], ["", "a/b", "x" * 129]),
        (TrackingConfig, "wandb_group", [None, "several seeds", "x" * 128], ["", "x" * 129, 1, "a\nb"]),
        (TrackingConfig, "wandb_tags", [[], ["a b", "x" * 64]], [None, "a", [""], ["x" * 65], [1], ["a\nb"]]),
        (Config, "seed", [0, 2**63 - 1], [-1, 2**63]),
        (Config, "runs_dir", ["runs", "my runs"], ["", " ", "a\0b"]),
        (DataConfig, "cache_dir", ["data/cache"], [""]),
        (DataConfig, "source", ["a.txt", ["a.txt", "b"]], ["", [], ["a", ""], [1], None, "a\0b"]),
        (DataConfig, "sha256", [None, "a" * 64], ["", "a" * 63, "g" * 64]),
        (DataConfig, "tokenizer", ["char", "byte", "bpe", "tiktoken:gpt2"], ["word", "tiktoken", "tiktoken:", "byte "]),
        (DataConfig, "encoding", ["utf-8", "CP1252", "gb18030", "utf-16"], ["", "utf-9", "hex", "undefined", "a\0b"]),
        (DataConfig, "val_source", [None, "a.txt", ["a.txt"]], ["", [], 1]),
        (DataConfig, "documents", ["file", "line", "none"], [None, "page"]),
        (DataConfig, "bpe_vocab_size", [258, 10**6], [257, 0, 10**6 + 1]),
        (DataConfig, "min_char_count", [1, 5], [0]),
    ],
)
def test_a_setting_takes_its_range_and_nothing_beyond(section, name, good, bad):
    for value in good:
        assert getattr(section(**{name: value}), name) == value
    for value in bad:
        message_of(section, **{name: value})


def test_a_checksum_in_capitals_means_the_same():
    assert DataConfig(sha256="AB" * 32).sha256 == "ab" * 32


@pytest.mark.parametrize("name", ["run", "run 2", "012", "naïve–🙂", ".hidden", "x" * 200])
def test_a_run_may_have_any_name_that_is_one_folder(name):
    assert Config(name=name).name == name


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\0", "a\n", "a:b", " a", "a ", "a.", "é" * 101])
def test_a_run_may_not_have_a_name_that_is_no_folder(name):
    message_of(Config, name=name)


def test_a_width_that_the_heads_cannot_share_comes_with_widths_and_heads_that_work():
    message = message_of(ModelConfig, architecture="gpt2", d_model=100, num_heads=3)
    assert message == (
        "model.d_model (100) must be a multiple of model.num_heads (3); "
        "try model.d_model=99 or model.d_model=102 or model.num_heads=2 or model.num_heads=4"
    )


def test_qwen3_needs_heads_of_even_width_and_gpt2_does_not():
    message = message_of(ModelConfig, d_model=20, num_heads=4)
    assert message == (
        "model.d_model / model.num_heads (20 / 4 = 5) must be even for model.architecture qwen3, whose rotary "
        "positions turn pairs; "
        "try model.d_model=16 or model.d_model=24 or model.num_heads=2 or model.num_heads=5"
    )
    assert ModelConfig(architecture="gpt2", d_model=20, num_heads=4).head_size == 5


def test_what_an_error_about_heads_proposes_is_valid():
    for architecture in ("gpt2", "qwen3"):
        for d_model in range(1, 40):
            for num_heads in (1, 3, 4, 7, 38):
                try:
                    ModelConfig(architecture=architecture, d_model=d_model, num_heads=num_heads)
                except ValidationError as error:
                    advice = error.errors()[0]["msg"].partition("; try ")[2]
                    assert advice
                    for proposal in advice.split(" or "):
                        key, value = proposal.removeprefix("model.").split("=")
                        sizes = {"d_model": d_model, "num_heads": num_heads} | {key: int(value)}
                        ModelConfig(architecture=architecture, **sizes)


def test_absurd_sizes_are_refused_without_a_long_search():
    assert message_of(ModelConfig, d_model=128, num_heads=MAX_COUNT) == (
        "model.d_model (128) must be a multiple of model.num_heads (1000000000); try model.num_heads=64"
    )
    assert "try" not in message_of(ModelConfig, d_model=MAX_COUNT - 1, num_heads=MAX_COUNT // 2 + 1)


def test_the_last_learning_rate_is_at_most_the_highest():
    assert OptimConfig(learning_rate=0.01, min_learning_rate=0.01).min_learning_rate == 0.01
    assert message_of(OptimConfig, learning_rate=0.01, min_learning_rate=0.02) == (
        "optim.min_learning_rate (0.02) must be at most optim.learning_rate (0.01); try optim.min_learning_rate=0.001"
    )


def test_something_ends_every_run():
    assert TrainConfig(max_steps=None, max_minutes=10).max_minutes == 10.0
    assert message_of(TrainConfig, max_steps=None) == (
        "train.max_steps and train.max_minutes are both null, so that training would never end; "
        "try train.max_minutes=10 or train.max_steps=1000"
    )

"""The schema in words: what a value must be, which name was meant, and the text of `--help`."""

import pytest

from config.describe import (
    FOREIGN_NAMES,
    SETTINGS,
    describe_settings,
    expected,
    nearest,
    nearest_setting,
    shown,
    shown_name,
)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("model.d_model", "an integer of at least 1"),
        ("model.d_ff", "an integer of at least 1, or null"),
        ("model.dropout", "a number of at least 0 and below 1"),
        ("model.architecture", "qwen3 or gpt2"),
        ("model.tie_embeddings", "true or false"),
        ("optim.learning_rate", "a number above 0"),
        ("optim.grad_clip", "a number above 0, or null"),
        ("train.max_minutes", "a number above 0, or null"),
        ("data.bpe_vocab_size", "an integer of at least 258 and at most 1000000"),
        ("runtime.precision", "auto, fp32, bf16 or fp16"),
        ("runtime.compile", "auto, true or false"),
        ("runtime.threads", "an integer of at least 1 and at most 1024, or null"),
        ("train.sample_prompt", "text, or null"),
        ("data.source", "text that is not blank, or a list of such texts"),
        ("data.sha256", "64 hexadecimal digits, or null"),
        ("seed", f"an integer of at least 0 and at most {2**63 - 1}"),
    ],
)
def test_what_a_setting_must_be_is_said_in_words(key, words):
    assert expected(SETTINGS[key]) == words


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("learning_rate", "optim.learning_rate"),
        ("learing_rate", "optim.learning_rate"),
        ("optim.learing_rate", "optim.learning_rate"),
        ("train.learning_rate", "optim.learning_rate"),
        ("optim.learning-rate", "optim.learning_rate"),
        ("model.dmodel", "model.d_model"),
        ("MODEL.D_MODEL", "model.d_model"),
        ("modle.dropout", "model.dropout"),
        ("batchsize", "train.batch_size"),
        ("model.seed", "seed"),
        ("lr", "optim.learning_rate"),
        ("model.n_layer", "model.num_layers"),
        ("block_size", "model.context_length"),
        ("zzzz", None),
        ("", None),
        ("x" * 1_000_000, None),
    ],
)
def test_a_wrong_name_leads_to_the_setting_that_was_meant(written, meant):
    assert nearest_setting(written) == meant


def test_names_from_other_trainers_lead_to_settings_that_exist():
    assert set(FOREIGN_NAMES.values()) <= set(SETTINGS)
    assert not set(FOREIGN_NAMES) & {key.rpartition(".")[2] for key in SETTINGS}


def test_the_nearest_name_ignores_case_and_may_be_none():
    assert nearest("Quikstart", ["my_text", "quickstart"]) == "quickstart"
    assert nearest("zzz", ["my_text", "quickstart"]) is None
    assert nearest("a", []) is None


def test_a_value_is_shown_as_yaml_spells_it_and_on_one_short_line():
    assert [shown(value) for value in (None, True, False, "a\nb", 1e-3)] == [
        "null",
        "true",
        "false",
        "'a\\nb'",
        "0.001",
    ]
    endless = [1]
    endless.append(endless)
    wide = [[["x"] * 9] * 9] * 9
    for value in (wide, "x" * 10**6, ["x" * 1000] * 1000, 10**4000, {1: endless}, endless):
        assert len(shown(value)) < 500
    assert [shown_name("model.x"), shown_name("a\nb")] == ["model.x", "'a\\nb'"]


def test_help_lists_every_setting_with_default_type_and_meaning():
    text = describe_settings()
    for key, field in SETTINGS.items():
        assert f"  {key}=" in text
        assert " ".join(field.description.split()) in " ".join(text.split())
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "model.dropout=0.0 a number of at least 0 and below 1" in lines
    assert "optim.grad_clip=1.0 a number above 0, or null" in lines
    assert "train.patience=null an integer of at least 1, or null" in lines


@pytest.mark.parametrize(("width", "widest"), [(64, 64), (80, 80), (200, 96)])
def test_help_fits_the_terminal(monkeypatch, width, widest):
    monkeypatch.setenv("COLUMNS", str(width))
    assert widest - 10 < max(map(len, describe_settings().splitlines())) <= widest

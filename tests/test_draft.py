"""A draft: settings become a `Config`, or all that is wrong with them becomes one error."""

import pytest

from config.draft import MAX_PROBLEMS, Draft
from config.schema import Config
from errors import ConfigError


def problems_of(draft):
    with pytest.raises(ConfigError) as caught:
        draft.finish()
    return str(caught.value).splitlines()


def draft_of(**values):
    draft = Draft()
    for key, value in values.items():
        draft.put(key.replace("__", "."), value, f"{key[-1]}.yaml")
    return draft


def test_an_empty_draft_is_all_defaults():
    assert Draft().finish() == Config()


def test_a_later_value_wins_with_its_place():
    draft = draft_of(seed=1)
    draft.put("seed", 2, "later")
    assert draft.finish().seed == 2
    draft.put("seed", -1, "last")
    assert problems_of(draft) == [f"seed must be an integer of at least 0 and at most {2**63 - 1}, got -1 (last)"]


def test_one_wrong_member_of_a_list_or_union_is_one_problem():
    assert problems_of(draft_of(data__source=["a", 1, 2], runtime__compile=3)) == [
        "data.source must be text that is not blank, or a list of such texts, got ['a', 1, 2] (e.yaml)",
        "runtime.compile must be auto, true or false, got 3 (e.yaml)",
    ]


def test_a_count_above_the_limit_says_the_limit():
    assert problems_of(draft_of(train__max_steps=10**12)) == [
        "train.max_steps must be an integer of at least 1, or null, at most 1000000000, got 1000000000000 (s.yaml)"
    ]
    assert problems_of(draft_of(train__max_minutes=2e6)) == [
        "train.max_minutes must be a number above 0, or null, at most 1051200, got 2000000.0 (s.yaml)"
    ]


def test_a_conflict_names_the_places_of_the_settings_in_it():
    assert problems_of(draft_of(model__d_model=100, model__num_heads=7)) == [
        "model.d_model (100) must be a multiple of model.num_heads (7); try model.d_model=98 or model.d_model=112 "
        "or model.num_heads=5 or model.num_heads=10 (l.yaml, s.yaml)"
    ]


def test_conflicts_are_reported_along_with_wrong_values_in_the_same_section():
    first, second = problems_of(draft_of(model__d_model=100, model__num_heads=7, model__dropout=2))
    assert first.startswith("model.dropout must be")
    assert second.startswith("model.d_model (100) must be a multiple")


def test_no_conflict_is_blamed_on_a_setting_whose_value_is_unknown():
    assert len(problems_of(draft_of(model__d_model="wide", model__num_heads=7))) == 1
    draft = draft_of(optim__min_learning_rate=0.5)
    draft.refuse_unknown("optim.learing_rate", "x.yaml")
    assert problems_of(draft) == ["optim.learing_rate is not a setting; did you mean optim.learning_rate? (x.yaml)"]


def test_an_unknown_name_with_nothing_near_gets_the_names_there_are():
    draft = Draft()
    draft.refuse_unknown("tracking.qqqqq", "x.yaml")
    draft.refuse_unknown("qqqqq", "x.yaml")
    assert problems_of(draft) == [
        "tracking.qqqqq is not a setting; tracking has wandb, wandb_project, wandb_group, wandb_tags, "
        "tensorboard (x.yaml)",
        "qqqqq is not a setting; the sections are model, data, train, optim, runtime, tracking; "
        "--help lists all settings (x.yaml)",
    ]


def test_a_flood_of_problems_is_cut():
    draft = Draft()
    for number in range(5000):
        draft.refuse_unknown(f"q{number}", "x.yaml")
    problems = problems_of(draft)
    assert len(problems) == MAX_PROBLEMS + 1
    assert problems[-1] == f"and {5000 - MAX_PROBLEMS} more"

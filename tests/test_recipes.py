"""The recipes beside the schema: all load, and all explain themselves."""

from itertools import pairwise
from pathlib import Path

import pytest

from config.load import load_config
from config.schema import ModelConfig

ROOT = Path(__file__).resolve().parents[1]
RECIPES = sorted((ROOT / "config").glob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_loads_and_explains_each_of_its_settings(path):
    load_config(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    for above, line in pairwise(lines):
        is_setting = line.startswith("  ") and not line.lstrip().startswith("#")
        assert not is_setting or " # " in line or above.lstrip().startswith("#"), line


def test_the_recipes_are_those_that_the_readme_promises():
    names = {path.stem for path in RECIPES}
    assert names == {
        "my_text",
        "quickstart",
        "shakespeare_char",
        "shakespeare_char_10min",
        "shakespeare_char_gpt2",
        "shakespeare_char_gpu",
    }


def test_the_gpt2_recipe_has_the_settings_of_nanogpt_on_a_cpu():
    config = load_config(ROOT / "config" / "shakespeare_char_gpt2.yaml")
    assert config.model == ModelConfig(
        architecture="gpt2", context_length=64, d_model=128, num_heads=4, num_layers=4, dropout=0
    )
    assert (config.train.batch_size, config.train.max_steps) == (12, 2000)
    optim = config.optim
    assert (optim.optimizer, optim.schedule, optim.learning_rate, optim.min_learning_rate) == (
        "adamw",
        "cosine",
        1e-3,
        1e-4,
    )
    assert (optim.beta2, optim.weight_decay, optim.grad_clip, optim.warmup_steps) == (0.99, 0.1, 1.0, 100)

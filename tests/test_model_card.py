"""What the README.md of an exported model says of it."""

from conftest import Tiny

from engine.checkpoint import load_checkpoint
from interop.model_card import model_card


def test_a_card_tells_text_settings_and_losses_and_no_path_of_this_machine(tiny: Tiny) -> None:
    run = tiny.run("optim.learning_rate=0.0005")
    card = model_card(load_checkpoint(run.checkpoint_file(1)), "f32")
    assert card.startswith("---\nlibrary_name: transformers\npipeline_tag: text-generation\n---\n")
    assert "- Text: `text.txt`" in card
    assert "- Training: 1 steps" not in card
    assert "- Training: 1 step\n" in card
    assert "2.5000 nats per token on text held back, 3.0000 on the training text" in card
    assert "optim.learning_rate: 0.0005" in card
    assert "model.d_ff: null" in card
    assert str(tiny.folder) not in card


def test_a_loss_that_was_not_measured_on_these_weights_is_not_told(tiny: Tiny) -> None:
    card = model_card(load_checkpoint(tiny.run().checkpoint_file(2)), "f32")
    assert "- Loss: not measured at this step" in card


def test_of_an_imported_model_the_text_is_unknown(tiny: Tiny) -> None:
    checkpoint = load_checkpoint(tiny.run().checkpoint_file(1))
    checkpoint.data["fingerprint"] = ""
    checkpoint.progress = {"best_step": None}
    card = model_card(checkpoint, "f32")
    assert "- Text: unknown; the model was imported" in card
    assert "stdlib" not in card
    assert "model.d_model: 16" in card
    assert "train." not in card


def test_of_an_address_only_the_name_is_told(tiny: Tiny) -> None:
    checkpoint = load_checkpoint(tiny.run().checkpoint_file(1))
    data = checkpoint.config.data.model_copy(update={"source": "https://me:pass@example.org/a/books.txt?sig=SECRET"})
    checkpoint.config = checkpoint.config.model_copy(update={"data": data})
    card = model_card(checkpoint, "f32")
    assert "- Text: `books.txt`" in card
    assert "SECRET" not in card
    assert "pass" not in card


def test_the_example_begins_with_something_that_can_be_read(tiny: Tiny) -> None:
    for kind, prompt in (("char", "a"), ("byte", "A")):
        card = model_card(load_checkpoint(tiny.run(f"data.tokenizer={kind}", name=kind).checkpoint_file(1)), "f32")
        assert f"write('{prompt}', max_new_tokens=7)" in card

"""The page about a text, as it is written and as a real browser shows it."""

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import open_page
from conftest import Tiny
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import Browser, Page

from data.tokenizer import ByteTokenizer, CharTokenizer
from engine.inspection import Inspection, inspect
from engine.loading import TrainedModel, load_model
from engine.page import PARTS, page, run_name, shown_piece, split_like, whole_characters

# A tag, emoji of one and of several code points, right-to-left letters and marks, and characters nobody can see.
HOSTILE = "<script>hacked=1</script>&amp;😀👩‍💻שלום مرحبا\u202eabc\x00\x1b[31m\x85\u2028{{data}}<!--<img src=x onerror=hacked=1>é\u0301\r\n\t end"  # noqa: E501
TEXT = "7 sheep and 49 goats,\n8 s"


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([], []),
        ([b"a", b"b"], [(0, 1), (1, 2)]),
        ([b"\xc3", b"\xa9", b"x"], [(0, 2), (2, 3)]),
        ([b"a\xf0\x9f", b"\x98\x80b"], [(0, 2)]),
        ([b"ab", b"\xc3"], [(0, 1), (1, 2)]),
    ],
)
def test_tokens_are_put_together_to_whole_characters(pieces: list[bytes], expected: list[tuple[int, int]]) -> None:
    assert list(whole_characters(pieces)) == expected


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_of_single_bytes_every_character_is_one_part(text: str) -> None:
    pieces = [bytes([byte]) for byte in text.encode()]
    parts = [b"".join(pieces[first:end]).decode() for first, end in whole_characters(pieces)]
    assert parts == list(text)


def test_a_token_is_shown_as_text_or_as_bytes_or_by_name() -> None:
    characters = CharTokenizer("né", has_unknown=True)
    assert [shown_piece(characters, token) for token in range(4)] == [
        ("text", "n"),
        ("text", "é"),
        ("name", "rare one"),
        ("name", "end of text"),
    ]
    assert shown_piece(ByteTokenizer(), 0xF0) == ("bytes", "f0")
    assert shown_piece(ByteTokenizer(), 0x41) == ("text", "A")


def test_a_text_is_split_as_its_tokens_are() -> None:
    parts = [b"ab", "é".encode(), b"", "\ufffd".encode(), b"\xc3"]
    assert list(split_like("abé\nŒÜ", parts)) == ["ab", "é", "\n", "Œ", "Ü"]


@dataclass
class Made:
    """A page, what is in it, and the model behind it."""

    html: str
    seen: Inspection
    file: Path
    model: TrainedModel

    @property
    def url(self) -> str:
        return self.file.as_uri()


@pytest.fixture
def make(tiny: Tiny) -> Callable[..., Made]:
    """Make the page of a text with a tiny model of these settings."""

    def make(text: str, *overrides: str, num_left_out: int = 0) -> Made:
        number = len([*tiny.folder.glob("*.html")])
        run = tiny.run(*overrides, name=f"tiny-{number}")
        model = load_model(run.path, device="cpu", precision="fp32")
        seen = inspect(model, model.tokenizer.encode(text).tolist())
        html = page(model, seen, text, num_left_out=num_left_out)
        file = tiny.folder / f"{number}.html"
        file.write_text(html, encoding="utf-8")
        return Made(html, seen, file, model)

    return make


def data_of(html: str) -> Any:
    """The data as a parser of HTML finds them."""
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script', html, re.DOTALL)
    return json.loads(found)


def test_no_text_can_end_the_data_or_begin_a_tag(make: Callable[..., Made]) -> None:
    made = make(HOSTILE, "data.tokenizer=byte")
    template = "".join(part.read_text(encoding="utf-8") for part in PARTS.glob("page*.*"))
    assert made.html.count("<script") == template.count("<script")
    assert made.html.count("<!--") == template.count("<!--")
    assert "".join(data_of(made.html)["texts"]) == HOSTILE


def test_the_page_asks_for_nothing_from_elsewhere(make: Callable[..., Made]) -> None:
    html = make(TEXT).html
    assert not re.findall(r"(?:src|href|url|import|fetch)\s*[=(]|https?:", html)


def test_the_page_is_called_after_its_run(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny.run(name="a<b")
    assert run_name(load_model(run.path)) == "a<b"
    elsewhere = tmp_path / "copied.pt"
    elsewhere.write_bytes(run.find("best").read_bytes())
    assert run_name(load_model(elsewhere)) == "copied"
    monkeypatch.chdir(run.path)
    assert run_name(load_model(".")) == "a<b"


@pytest.fixture
def opened(make: Callable[..., Made], page: Page) -> Iterator[tuple[Page, Made]]:
    """A page of two windows in the browser, off line; every request but that for itself is a mistake."""
    made = make(TEXT)
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.context.set_offline(True)
    page.goto(made.url)
    yield page, made
    assert requests == [made.url]


def characters(page: Page) -> list[str]:
    return page.locator("#text > span").all_text_contents()


def select(page: Page, position: int) -> None:
    """Select the character at a position, where each is a token."""
    page.locator(f'#text > span[data-unit="{position}"]').click()


def number(text: str) -> float:
    return float(text.replace("−", "-").replace(",", ""))


def shares(page: Page) -> list[float]:
    """How strongly each character is shaded, from 0 to 1."""
    shown = page.locator("#text > span").evaluate_all("all => all.map((e) => e.style.getPropertyValue('--share'))")
    return [*map(float, shown)]


def numbers_in(page: Page, selector: str) -> list[float]:
    """The exact numbers of table cells, which they show on hover."""
    return [float(cell.get_attribute("title") or "nan") for cell in page.locator(selector).all()]


def close(a: Any, b: Any, tolerance: float = 1e-5) -> bool:
    return bool(torch.allclose(torch.as_tensor(a), torch.as_tensor(b), rtol=0, atol=tolerance))


def test_each_character_has_its_surprise_on_hover_and_on_focus(opened: tuple[Page, Made]) -> None:
    page, made = opened
    assert "".join(characters(page)) == TEXT.replace("\n", "↵\n")
    for position in range(1, len(TEXT)):
        page.locator(f'#text > span[data-unit="{position}"]').hover()
        shown = page.inner_text("#details")
        bits = re.search(r"position (\d+): ([\d.]+) bits", shown)
        assert bits is not None, shown
        assert int(bits[1]) == position
        assert close(float(bits[2]), made.seen.surprises[position], 6e-5)
        rank = made.seen.ranks[position].item()
        assert (", the likeliest." if rank == 1 else f", the {rank}") in shown
    select(page, 0)
    assert page.inner_text("#details").endswith("nothing stands before it, so it is not predicted.")
    for position in range(1, 5):
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.dataset.unit") == str(position)
        assert f"{made.seen.surprises[position]:.4f} bits" in page.inner_text("#details")


def test_the_more_surprising_the_darker(opened: tuple[Page, Made]) -> None:
    page, made = opened
    strengths = shares(page)
    most_bits = data_of(made.html)["most_bits"]
    assert most_bits == round(math.log2(made.model.tokenizer.vocab_size))
    expected = [min(1, bits / most_bits) for bits in made.seen.surprises.nan_to_num(0).tolist()]
    assert close(strengths, expected, 0.005)


def test_the_likeliest_next_characters_are_listed(opened: tuple[Page, Made]) -> None:
    page, made = opened
    for position in (0, 5, 21, 24):
        select(page, position)
        rows = page.locator("#next li")
        shown = [number(text or "") for text in rows.locator(".number").evaluate_all("all => all.map(e => e.title)")]
        assert close(shown, made.seen.probabilities[position])
        pieces = rows.locator(".piece").all_text_contents()
        decode = made.model.tokenizer.decode
        expected = [decode([token]) or "end of text" for token in made.seen.likeliest[position].tolist()]
        assert pieces == [{" ": "␣", "\n": "↵"}.get(piece, piece) for piece in expected]
        given = page.locator("#next li.given .piece").all_text_contents()
        wanted = {" ": "␣", "\n": "↵"}.get(TEXT[position + 1 :][:1], TEXT[position + 1 :][:1])
        assert given == ([wanted] if wanted in pieces else [])
    assert page.inner_text("#next-rest") == "Here the text ends."


def test_a_click_on_a_map_enlarges_it_and_its_numbers_are_the_weights(opened: tuple[Page, Made]) -> None:
    page, made = opened
    weights = made.seen.attention.weights
    pictures = set()
    for layer in range(2):
        for head in range(2):
            page.locator(f'#maps button[data-layer="{layer}"][data-head="{head}"]').click()
            assert page.inner_text("#map-heading") == f"Layer {layer}, head {head}"
            pictures.add(page.evaluate("document.querySelector('#map canvas').toDataURL()"))
            box = page.locator("#map canvas").bounding_box()
            assert box is not None
            for row, column in ((7, 0), (7, 7), (3, 2), (2, 6)):
                at = {"x": box["width"] * (column + 0.5) / 8, "y": box["height"] * (row + 0.5) / 8}
                page.locator("#map canvas").hover(position=at)  # type: ignore[arg-type]
                shown = page.inner_text("#cell")
                assert f"at {row} looks at" in shown
                if column > row:
                    assert shown.endswith("never; it comes later.")
                else:
                    assert close(float(shown.rpartition(": ")[2]), weights[layer, head, row, column], 1e-6)
    assert len(pictures) == 4
    page.locator("#map canvas").click(position={"x": box["width"] * 1.5 / 8, "y": box["height"] * 4.5 / 8})
    assert page.inner_text("#scores-lead").startswith("The query of position 4 meets")
    assert page.locator("#text [aria-selected=true]").get_attribute("data-unit") == "4"
    assert "at position 1" in page.inner_text("#dot-heading")


def test_a_map_shows_its_weights_and_nothing_above_the_diagonal(opened: tuple[Page, Made]) -> None:
    page, made = opened
    maps = page.locator("#maps canvas")
    assert maps.count() == 4
    for index in range(4):
        pixels = maps.nth(index).evaluate(
            "canvas => Array.from(canvas.getContext('2d').getImageData(0, 0, 8, 8).data.filter((_, i) => i % 4 === 3))"
        )
        strengths = torch.tensor(pixels).view(8, 8) / 255
        weights = made.seen.attention.weights[index // 2, index % 2]
        assert close(strengths.tril(), weights.sqrt(), 0.004)
        assert (strengths.triu(1)[strengths.triu(1) > 0] == 28 / 255).all()


def test_selecting_a_character_shows_what_each_head_looks_at(opened: tuple[Page, Made]) -> None:
    page, made = opened
    select(page, 6)
    for index, looks in enumerate(page.locator("#maps .looks").all()):
        row = made.seen.attention.weights[index // 2, index % 2, 6]
        best = row.topk(2)
        assert [int(at) for at in looks.locator("sub").all_text_contents()] == best.indices.tolist()
        found = re.findall(r" (1?\.\d\d) ", looks.text_content() or "")
        assert close([float(share) for share in found], best.values, 0.00501)
    page.get_by_label("what the selected head looks at").check()
    strengths = shares(page)
    expected = made.seen.attention.weights[1, 0, 6].sqrt()
    assert close(strengths[:8], expected, 0.005)
    assert not any(strengths[8:])


def test_the_formula_is_worked_out_with_the_models_numbers(opened: tuple[Page, Made]) -> None:
    page, made = opened
    page.locator('#maps button[data-layer="0"][data-head="1"]').click()
    select(page, 5)
    attention = made.seen.attention
    q, k, v = (each[0, 1] for each in (attention.q, attention.k, attention.v))
    weights = attention.weights[0, 1, 5, :6]
    rows = [cells.split("\t") for cells in page.locator("#scores tbody tr").all_inner_texts()]
    assert [int(row[0]) for row in rows] == [*range(6)]
    assert close([number(row[2]) for row in rows], k[:6] @ q[5], 1e-4)
    scores = k[:6] @ q[5] / math.sqrt(8)
    assert close([number(row[3]) for row in rows], scores, 1e-4)
    assert close([number(row[4]) for row in rows], (scores - scores.max()).exp(), 1e-4)
    assert close([number(row[5]) for row in rows], weights, 6e-5)
    assert page.locator("#scores tfoot td").all_text_contents()[5] == "1.0000"
    page.locator('#scores tr[data-column="2"]').click()
    assert close(numbers_in(page, "#dot tr:nth-child(1) td"), q[5])
    assert close(numbers_in(page, "#dot tr:nth-child(2) td"), k[2])
    assert close(numbers_in(page, "#dot tr:nth-child(3) td"), q[5] * k[2])
    assert f"sum {(q[5] @ k[2]).item():.4f}".replace("-", "−") in page.inner_text("#dot")
    assert close(numbers_in(page, "#sum tr:nth-child(1) td"), v[2])
    assert close(numbers_in(page, "#sum tr:nth-child(2) td"), v[2] * weights[2])
    assert close(numbers_in(page, "#sum tr:nth-child(3) td"), weights @ v[:6])


def test_all_of_it_can_be_reached_by_keyboard(opened: tuple[Page, Made]) -> None:
    page, _ = opened
    page.locator("#text [aria-selected=true]").focus()
    page.keyboard.press("Home")
    assert page.inner_text("#next-lead").endswith("at position 0 the model expects:")
    page.keyboard.press("ArrowDown")  # to the second line
    assert page.inner_text("#next-lead").endswith("at position 22 the model expects:")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#next-lead").endswith("at position 2 the model expects:")
    page.keyboard.press("Tab")  # the text is one stop, and so are the maps
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")  # there are no more
    page.keyboard.press("Control+ArrowDown")  # is the browser's
    assert page.inner_text("#map-heading") == "Layer 0, head 1"
    assert page.evaluate("document.activeElement.dataset.head") == "1"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "map"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert "at 3 looks at" in page.inner_text("#cell")
    assert "at position 0" in page.inner_text("#dot-heading")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    assert "at position 1" in page.inner_text("#dot-heading")
    assert page.evaluate("document.activeElement.closest('tr').dataset.column") == "1"
    page.keyboard.press("ArrowUp")
    assert "at position 0" in page.inner_text("#dot-heading")
    page.keyboard.press("Enter")  # nothing is lost by it
    assert page.evaluate("document.activeElement.closest('tr').dataset.column") == "0"


def test_behind_what_was_recorded_there_is_still_the_surprise(opened: tuple[Page, Made]) -> None:
    page, made = opened
    select(page, 8)
    assert f"{made.seen.surprises[8]:.4f} bits" in page.inner_text("#details")
    assert page.inner_text("#maps-lead").startswith("Attention is kept for positions 0 to 7")
    assert not page.locator("#map").is_visible()
    assert not page.locator("#scores").is_visible()
    select(page, 7)
    assert page.locator("#map").is_visible()


def test_what_is_left_out_of_a_text_is_said(make: Callable[..., Made], page: Page) -> None:
    page.goto(make(TEXT, num_left_out=12345).url)
    assert page.inner_text("#left-out") == "The text goes on: 12,345 more tokens are not shown."
    select(page, len(TEXT) - 1)
    assert page.inner_text("#next-rest") == "What is shown ends here."
    page.goto(make(TEXT).url)
    assert not page.locator("#left-out").is_visible()


def test_a_text_of_one_character_is_a_page_too(make: Callable[..., Made], page: Page) -> None:
    page.goto(make("s").url)
    assert page.locator("#scores tbody tr").count() == 1
    assert page.locator("#scores tfoot td").all_text_contents()[5] == "1.0000"


def test_hostile_text_is_shown_as_text(make: Callable[..., Made], page: Page) -> None:
    made = make(HOSTILE, "data.tokenizer=byte")
    page.goto(made.url)
    shown = "".join(characters(page))
    replaced = {invisible: f"U+{ord(invisible):04X}" for invisible in "\u202e\x00\x1b\x85\u2028\u200d\r"}
    replaced |= {"\n": "↵\n", "\t": "⇥"}
    expected = "".join(replaced.get(character, character) for character in HOSTILE)
    assert shown == expected.replace("\u0301", "◌\u0301")  # a mark of its own, since it is a token of its own
    assert page.evaluate("typeof hacked") == "undefined"
    assert page.locator("img").count() == 0
    for unit, character in enumerate(HOSTILE):
        page.locator(f'#text > span[data-unit="{unit}"]').dispatch_event("click")
        assert page.locator("#text [aria-selected=true]").get_attribute("data-unit") == str(unit)
        chips = page.locator("#details button").all_text_contents()
        assert len(chips) == (len(character.encode()) if len(character.encode()) > 1 else 0)


def test_the_surprise_of_a_character_is_that_of_all_its_bytes(make: Callable[..., Made], page: Page) -> None:
    made = make("né😀x", "data.tokenizer=byte")
    page.goto(made.url)
    page.locator('#text > span[data-unit="2"]').click()
    assert f"positions 3 to 6: {made.seen.surprises[3:7].sum():.4f} bits" in page.inner_text("#details")
    chips = page.locator("#details button")
    assert [text.split()[0] for text in chips.all_text_contents()] == ["f0", "9f", "98", "80"]
    chips.nth(1).click()
    assert page.inner_text("#next-lead") == "After 9f at position 4 the model expects:"
    assert page.evaluate("document.activeElement.dataset.position") == "4"


def test_it_follows_the_readers_choice_of_light_and_dark(make: Callable[..., Made], browser: Browser) -> None:
    made = make(TEXT)
    looks = {}
    for scheme in ("light", "dark"):
        with open_page(browser, color_scheme=scheme) as page:
            page.goto(made.url)
            ground, ink = page.evaluate("(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))")
            looks[scheme] = (brightness(ground), page.evaluate("document.querySelector('#map canvas').toDataURL()"))
            assert abs(brightness(ground) - brightness(ink)) > 0.7
            page.emulate_media(color_scheme="dark" if scheme == "light" else "light")
            repainted = "old => document.querySelector('#map canvas').toDataURL() !== old"
            page.wait_for_function(repainted, arg=looks[scheme][1])
    assert looks["light"][0] > 0.9 > 0.2 > looks["dark"][0]


def brightness(colour: str) -> float:
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / (3 * 255)


def test_it_fits_on_a_phone_and_answers_to_a_finger(make: Callable[..., Made], browser: Browser) -> None:
    made = make(TEXT)
    phone = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}
    with open_page(browser, **phone) as page:
        page.goto(made.url)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.locator('#text > span[data-unit="3"]').tap()
        assert page.inner_text("#next-lead").endswith("at position 3 the model expects:")
        page.locator('#maps button[data-layer="1"][data-head="1"]').tap()
        assert page.inner_text("#map-heading") == "Layer 1, head 1"
        map_box = page.locator("#map").bounding_box()
        assert map_box is not None
        assert 0 <= map_box["y"] < 740  # it was scrolled to


def test_the_first_character_has_the_surprise_of_all_its_bytes_but_one(make: Callable[..., Made], page: Page) -> None:
    made = make("😀x", "data.tokenizer=byte")
    page.goto(made.url)
    page.locator('#text > span[data-unit="0"]').click()
    bits = made.seen.surprises[1:4].sum().item()
    assert f"positions 0 to 3: {bits:.4f} bits" in page.inner_text("#details")
    assert "for all but the first token" in page.inner_text("#details")
    assert shares(page)[0] == pytest.approx(min(1, bits / 8), abs=1e-4)


def test_rare_characters_that_share_a_token_are_shown_as_they_are(make: Callable[..., Made], page: Page) -> None:
    made = make("7 sheep äß", "data.min_char_count=20")
    page.goto(made.url)
    assert "".join(characters(page)) == "7 sheep äß"
    select(page, 8)
    assert page.inner_text("#details").startswith("ä position 8:")
    assert page.inner_text("#next-lead") == "After rare one at position 8 the model expects:"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_text_can_be_read_on_every_shade(make: Callable[..., Made], browser: Browser, scheme: str) -> None:
    """WCAG 2, contrast of at least 4.5."""
    made = make(TEXT)
    with open_page(browser, color_scheme=scheme) as page:
        page.goto(made.url)
        for name in ("surprise", "what the selected head looks at"):
            page.get_by_label(name).check()
            span = page.locator("#text > span").first
            span.evaluate("span => span.style.setProperty('--share', '1')")
            shade, alpha = colour(span.evaluate("span => getComputedStyle(span).backgroundColor"))
            ink, _ = colour(span.evaluate("span => getComputedStyle(span).color"))
            panel, _ = colour(page.locator("section").first.evaluate("e => getComputedStyle(e).backgroundColor"))
            ground = [alpha * a + (1 - alpha) * b for a, b in zip(shade, panel, strict=True)]
            light, dark = sorted([luminance(ground), luminance(ink)], reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5


def colour(text: str) -> tuple[list[float], float]:
    red, green, blue, *alpha = map(float, re.findall(r"[\d.]+", text))
    return [red, green, blue], alpha[0] if alpha else 1.0


def luminance(rgb: list[float]) -> float:
    """WCAG 2's relative luminance."""
    linear = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

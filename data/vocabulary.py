"""Which tokenizer a corpus gets: learnt from it, published, or that of a model which is continued, completed.

Reading the texts and counting their characters is `data.passes`' concern. Imports no torch.
"""

from collections.abc import Callable, Iterable

from config.schema import DataConfig
from data.paths import counted
from data.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer
from data.unicode import CharacterCounts
from errors import DataError

Report = Callable[[str], None]

_MAX_LISTED = 10
_PUBLISHED = "tiktoken:"


def fixed_vocabulary(config: DataConfig) -> Tokenizer | None:
    """The tokenizer that the settings ask for where it depends on no text: bytes or a published one; else None."""
    if config.tokenizer == ByteTokenizer.kind:
        return ByteTokenizer(unicode=config.unicode)
    if config.tokenizer in (CharTokenizer.kind, "bpe"):
        return None
    from data.published import tiktoken_tokenizer  # imports tiktoken, which characters and bytes do without

    return tiktoken_tokenizer(config.tokenizer.removeprefix(_PUBLISHED), unicode=config.unicode)


def check_name(config: DataConfig) -> None:
    """Raise `DataError` for a published vocabulary that there is not, before anything is read for it."""
    if config.tokenizer.startswith(_PUBLISHED):
        from data.published import constructor_of  # as above

        constructor_of(config.tokenizer.removeprefix(_PUBLISHED))


def byte_pairs(config: DataConfig, chunks: Iterable[str], *, report: Report) -> Tokenizer:
    """A vocabulary of byte pairs, learnt from all of the chunks, which are in the normal form of the settings."""
    from data.bpe import train_bpe

    tokenizer = train_bpe(chunks, config.bpe_vocab_size, unicode=config.unicode)
    if tokenizer.vocab_size < config.bpe_vocab_size:
        report(
            f"the text has so few different words that it gives only {tokenizer.vocab_size:,} tokens, not the "
            f"{config.bpe_vocab_size:,} of data.bpe_vocab_size"
        )
    return tokenizer


def characters(config: DataConfig, counts: CharacterCounts, *, report: Report) -> Tokenizer:
    """A vocabulary of the characters that have been counted; the rare ones share a token where settings say so."""
    if not counts.num_chars:
        raise nothing_to_learn("data.source", config)
    frequent = counts.characters(config.min_char_count)
    num_rare, num_occurrences = counts.num_rare(config.min_char_count)
    if not frequent:
        raise DataError(
            f"data.min_char_count={config.min_char_count}: no character of the text occurs so often; try a smaller one"
        )
    if num_rare:
        report(
            f"{counted(num_rare, 'character')} that {'occurs' if num_rare == 1 else 'occur'} less than "
            f"{config.min_char_count:,} times {'shares' if num_rare == 1 else 'share'} one token "
            f"({num_occurrences / counts.num_chars:.2%} of the text)"
        )
    return CharTokenizer(frequent, has_unknown=num_rare > 0, unicode=config.unicode)


def completed(given: Tokenizer, config: DataConfig, *, counts: CharacterCounts, report: Report) -> Tokenizer:
    """The given tokenizer, with the text's unknown characters added or taken out of `counts`, as `data.unknown` says.

    Also where a vocabulary has a token for unknown characters: a text in which everything is this one is none.
    """
    if not isinstance(given, CharTokenizer):
        return given
    unknown = sorted(set(counts.characters()) - set(given.characters), key=lambda c: (-counts.count(c), c))
    if not unknown:
        return given
    listed = ", ".join(f"{character!r} ({counts.count(character):,})" for character in unknown[:_MAX_LISTED])
    more = f" and {len(unknown) - _MAX_LISTED:,} more" if len(unknown) > _MAX_LISTED else ""
    found = f"{len(unknown):,} of the text's characters are unknown to the model (how often): {listed}{more}"
    if config.unknown == "error":
        fate = "; all of them would become its one token for rare characters" if given.has_unknown else ""
        raise DataError(f"{found}{fate}; data.unknown=drop leaves them out, data.unknown=extend learns them too")
    if config.unknown == "extend":
        report(f"{found}; they are added to its vocabulary")
        return given.extended("".join(unknown))
    share = sum(map(counts.count, unknown)) / counts.num_chars
    report(f"{found}; they are left out ({share:.2%} of the text)")
    for character in unknown:
        counts.forget(character)
    return given


def nothing_to_learn(setting: str, config: DataConfig, *, drops: bool = False) -> DataError:
    """The error for texts of this setting that give no token."""
    if drops:
        return DataError(
            f"{setting}: the model knows none of the text's characters, and data.unknown=drop leaves them out; "
            "use data.unknown=extend"
        )
    what = "the text has no line with content" if config.documents == "line" else "there is no character in the text"
    return DataError(f"{setting}: {what}; name a text that has some")


def tell_settings_without_effect(config: DataConfig, given: Tokenizer | None, *, report: Report) -> None:
    """Report the settings that have been changed and decide nothing, one line each."""
    kind = config.tokenizer if given is None else given.kind
    reasons = {}
    if kind != "char":
        reasons["min_char_count"] = f"it is for data.tokenizer=char, not {kind}"
    if kind != "bpe":
        reasons["bpe_vocab_size"] = f"it is for data.tokenizer=bpe, not {kind}"
    if given is None:
        reasons["unknown"] = "it is for train.init_from, and this model learns all characters of its text"
    elif kind != "char":
        reasons["unknown"] = f"a model with data.tokenizer={kind} knows all characters"
    if config.val_source is not None:
        reasons["val_fraction"] = "data.val_source names the text to validate on"
    for name, reason in reasons.items():
        value = getattr(config, name)
        if value != DataConfig.model_fields[name].default:
            report(f"data.{name}={value} has no effect: {reason}")

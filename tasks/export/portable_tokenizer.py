"""Tokenizers that give xcflow's token ids without xcflow: each cleans a text and cuts it by itself."""

from tokenizers import Regex, Tokenizer, normalizers, processors

from xcmodels.data import tokens

_CHARACTERS = 64    # of a text, for each token kept, that `xcmodels.data.tokens.Tokenizer` reads
_CONTROL = r"[\x00-\x1f\x7f-\x{9f}]"


def portable(tokenizer: tokens.Tokenizer, limit: int, special: tuple[int, int] | None = None) -> Tokenizer:
    """Return a tokenizer of one field, whose first `limit` tokens it keeps.

    special: the first and the last token that it puts around the others where special tokens are asked for.
    Its normaliser does what `xcmodels.data.text.clean` and `xcmodels.data.tokens.Tokenizer` do with a text, except for
    lone surrogates, which no tokenizer takes, and for white space around a special token that a text spells out.
    """
    made = Tokenizer.from_str(tokenizer.backend.to_str())
    steps = [normalizers.Strip(left=True, right=False),
             # nested, since a repeat takes at most 100,000
             normalizers.Replace(Regex(rf"\A(?m:(?:.{{{_CHARACTERS}}}){{{limit}}})\K(?m:.+)"), ""),
             normalizers.Replace(Regex(_CONTROL), " "), normalizers.NFC(), normalizers.Strip()]
    made.normalizer = normalizers.Sequence(steps + ([made.normalizer] if made.normalizer else []))
    if special is None:
        made.post_processor = None
        made.enable_truncation(limit)
    else:
        first, last = special
        made.post_processor = processors.TemplateProcessing(
            single="<first> $A <last>", pair="<first> $A $B <last>",
            special_tokens=[("<first>", first), ("<last>", last)])
        made.enable_truncation(limit + 2)
    return made

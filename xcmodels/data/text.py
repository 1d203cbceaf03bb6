"""Text normalisation, the same for training, labels and serving."""

import re
import unicodedata

# Unicode category Cc (C0, DEL, C1) becomes a space; a lone surrogate is no character.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
SHOWN = 300    # characters of a text that are shown to people
EXAMPLE_LENGTH = 200    # of one that is an example to be asked


def clean(text: str) -> str:
    """Return a text in NFC, without control characters or lone surrogates, and stripped at both ends.

    Control characters (tab and newline included) become spaces, surrogates U+FFFD; inner spaces are kept as they are.
    Idempotent: clean(clean(x)) == clean(x).
    """
    if text.isascii():
        # nearly every English text ends here: two scans in C
        return (text if text.isprintable() else _CONTROL.sub(" ", text)).strip()
    text = _SURROGATE.sub("\ufffd", _CONTROL.sub(" ", text))
    return unicodedata.normalize("NFC", text).strip()


def shown(title: str, content: str) -> str:
    """Return the text shown to people: the start of its title, or of its content where it has no title."""
    return (title or content)[:SHOWN]


def example(title: str, content: str) -> str:
    """Return the example that is made of a test text: the start of what is shown of it."""
    return shown(title, content)[:EXAMPLE_LENGTH]

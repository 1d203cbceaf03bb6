"""The one rule by which a text becomes a text of ours, for training, for labels and for serving alike."""

import re
import unicodedata

# Unicode category Cc (C0, DEL, C1) becomes a space; a surrogate that stands alone is no character at all.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
SHOWN = 300    # characters of a text that a person is shown


def clean(text: str) -> str:
    """Return a text in NFC, without control characters or lone surrogates, and stripped at both ends.

    Control characters (tab and newline included) become spaces, surrogates U+FFFD; inner spaces are kept as they are.
    It may be applied again without effect: clean(clean(x)) == clean(x).
    """
    if text.isascii():
        # nearly every English text ends here: two scans in C
        return (text if text.isprintable() else _CONTROL.sub(" ", text)).strip()
    text = _SURROGATE.sub("\ufffd", _CONTROL.sub(" ", text))
    return unicodedata.normalize("NFC", text).strip()


def shown(title: str, content: str) -> str:
    """Return what a person is shown of a text: the beginning of its title, or of its content where it has no title."""
    return (title or content)[:SHOWN]

"""Texts of requests, cut so that none takes much longer to read than others of its length."""

import re
import unicodedata

MARKS = 30    # combining marks in a row that are read, as in Unicode's Stream-Safe Text Format (UAX 15)
# Of combining class 0, and so no marks, but two each once they are decomposed.
_HIDDEN = "\u0f73\u0f75\u0f81"
_TOO_MANY = re.compile(rb"[^\0]{%d,}" % (MARKS + 1))


def readable(text: str) -> str:
    """Return a text without the marks that follow MARKS combining ones in a row.

    To normalise a text sorts each such row by insertion: it would take the square of its length, in the event loop, in
    which all others wait.
    """
    if text.isascii():
        return text
    seen = text
    for letter in _HIDDEN:
        seen = seen.replace(letter, "\u0f71")
    kept, end = [], 0
    for row in _TOO_MANY.finditer(bytes(map(unicodedata.combining, seen))):
        kept.append(text[end:row.start() + MARKS])
        end = row.end()
    return "".join([*kept, text[end:]])

"""Dictionaries in dictd's format: an entry is the text, the entries or translations that it names are its labels."""

import gzip
import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from benchmarks.datasets.drawn import Found, Text, share
from benchmarks.datasets.fetched import Packages

_DIGITS = {letter: value for value, letter in enumerate(
    string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/")}
_REFERENCE = re.compile(r"\{([^{}]+)\}")
_DATE = re.compile(r"\(\d{4}-\d\d-\d\d\)\s*$")
_SAID = re.compile(r"\\[^\\]*\\|\([^()]*\[[^()]*\)")    # how gcide says that a word is pronounced
_SOURCE = re.compile(r"\[[^][]*(?:Webster|WordNet|PJC)[^][]*\]")
_SYNONYMS = re.compile(r"\bSyn[.:]\s+(.*?)(?=\n\s*\n|\Z)", re.DOTALL)
_GERMAN = 90_000    # drawn of some 180,000
_COMMON = 0.05    # share of texts above which an English word, "of" first of all, says nothing about them


def foldoc(packages: Packages) -> Found:
    """Return the entries of the Free On-line Dictionary of Computing, labelled with the entries they refer to."""
    read = (foldoc_entry(*entry) for entry in entries(packages.debian("dict-foldoc")))
    return Found(*referring(read), packages.version("dict-foldoc"), "GFDL-1.1+")


def gcide(packages: Packages) -> Found:
    """Return the words of the Collaborative International Dictionary of English, labelled with those they refer to."""
    read = (gcide_entry(*entry) for entry in entries(packages.debian("dict-gcide")))
    return Found(*referring(read), packages.version("dict-gcide"), "GPL-2+")


def german_english(packages: Packages) -> Found:
    """Return German nouns and adjectives, labelled with the words of their English translations."""
    read = [pair for entry in entries(packages.debian("dict-freedict-deu-eng")) if (pair := translated(*entry))]
    chosen = sorted(read, key=lambda pair: (share(pair[0], "drawn"), pair))[:_GERMAN]
    uses = Counter(word for _, words in chosen for word in words)
    texts = {f"{head} {place}": Text(head, "", frozenset(word for word in words if uses[word] <= _COMMON * len(chosen)))
             for place, (head, words) in enumerate(chosen)}
    return Found(texts, {word: (word, "") for word in uses}, packages.version("dict-freedict-deu-eng"), "GPL-3+")


Entry = tuple[list[str], str, list[str]]


def referring(read: Iterable[Entry]) -> tuple[dict[str, Text], dict[str, tuple[str, str]]]:
    """Return entries, and as labels the same by the same keys, by (headwords, text, words that are referred to).

    A word is found by any headword, whatever its case, and in the singular. Entries of the same word become one.
    """
    bodies, wanted, keys = dict[str, list[str]](), dict[str, set[str]](), dict[str, str]()
    for heads, text, words in read:
        key = heads[0]
        bodies.setdefault(key, []).append(text)
        wanted.setdefault(key, set()).update(words)
        for head in heads:
            keys.setdefault(_folded(head), key)
    texts, labels = {}, {}
    for key, parts in bodies.items():
        content = " ".join(" ".join(parts).split())
        named = {keys[known] for word in wanted[key] if (known := _known(word, keys))}
        texts[key], labels[key] = Text(key, content, frozenset(named - {key})), (key, content)
    return texts, labels


def foldoc_entry(head: str, body: str) -> Entry:
    """Return an entry's headwords, its text without the words {in braces}, and those."""
    return [word.strip() for word in head.split("%%%") if word.strip()], _bare(_DATE.sub("", body)), \
        _REFERENCE.findall(body)


def gcide_entry(head: str, body: str) -> Entry:
    """Return an entry's headword, its text without how it is said, synonyms and words {in braces}, and those."""
    word, slash, rest = head.partition("\\")
    body = _SOURCE.sub("", f"{slash}{rest}\n{body}")
    synonyms = [part.strip() for listed in _SYNONYMS.findall(body) for part in re.split("[;,.]", listed)]
    text = _bare(_SAID.sub(" ", _SYNONYMS.sub(" ", body))).lstrip(" ,;\n")
    return [word.strip() or head], text, [*_REFERENCE.findall(body), *filter(None, synonyms)]


def translated(head: str, body: str) -> tuple[str, frozenset[str]] | None:
    """Return a German noun in the singular, or adjective, and the words of its translations; None for other entries."""
    word, kind = re.sub(r"/[^/]*/", "", head).strip(), re.search(r"<([^<>]*)>\s*$", head)
    if kind is None or not ("sg" in kind[1] or "adj" in kind[1]):
        return None
    english = re.sub(r"\[[^]]*\]|<[^>]*>|\([^)]*\)", " ", body.partition("\n")[0])
    words = frozenset(re.findall(r"[a-z][a-z'-]+", english.lower()))
    german = word.partition("<")[0].strip()
    return (german, words) if german and words else None


def _bare(text: str) -> str:
    return _REFERENCE.sub(" ", text)


def _known(word: str, keys: Mapping[str, str]) -> str:
    """Return a word as `keys` has it, in the singular where it has no plural; empty where it has neither."""
    word = _folded(word)
    return word if word in keys else word[:-1] if word.endswith("s") and word[:-1] in keys else ""


def _folded(word: str) -> str:
    return " ".join(word.lower().split())


def entries(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield (headwords, body) of every entry of an unpacked dictionary, in the order of its file, each once."""
    index, = folder.glob("usr/share/dictd/*.index")
    data = gzip.decompress(index.with_suffix(".dict.dz").read_bytes())
    places = {(number(at), number(length)) for word, at, length in
              (line.split("\t")[:3] for line in index.read_text(encoding="utf-8").splitlines())
              if not word.startswith(("00-database", "00database"))}
    for at, length in sorted(places):
        head, _, body = data[at:at + length].decode("utf-8", "replace").partition("\n")
        if head.strip():
            yield head.strip(), body


def number(digits: str) -> int:
    """Read a number in the index's base 64, the first digit the highest."""
    value = 0
    for digit in digits:
        value = 64 * value + _DIGITS[digit]
    return value

"""Dictionaries in dictd's format: an entry is a text, its references or translations are its labels."""

import gzip
import re
from base64 import b64decode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from benchmarks.datasets.building import RawSet, Text, hash_fraction
from benchmarks.datasets.packages import Fetcher

_REFERENCE = re.compile(r"\{([^{}]+)\}")
_DATE = re.compile(r"\(\d{4}-\d\d-\d\d\)\s*$")
_PRONUNCIATION = re.compile(r"\\[^\\]*\\|\([^()]*\[[^()]*\)")    # in gcide
_SOURCE = re.compile(r"\[[^][]*(?:Webster|WordNet|PJC)[^][]*\]")
_SYNONYMS = re.compile(r"\bSyn[.:]\s+(.*?)(?=\n\s*\n|\Z)", re.DOTALL)
_GERMAN_ENTRIES = 90_000    # sampled from some 180,000
_COMMON = 0.05    # a word in the translations of a larger share of entries (such as "of") is no label


def foldoc(fetcher: Fetcher) -> RawSet:
    """Return the entries of the Free On-line Dictionary of Computing, labelled with the entries that they refer to."""
    parsed = (foldoc_entry(*entry) for entry in entries(fetcher.debian("dict-foldoc")))
    return RawSet(*link_entries(parsed), fetcher.version("dict-foldoc"), "GFDL-1.1+")


def gcide(fetcher: Fetcher) -> RawSet:
    """Return the entries of the Collaborative International Dictionary of English, labelled in the same way."""
    parsed = (gcide_entry(*entry) for entry in entries(fetcher.debian("dict-gcide")))
    return RawSet(*link_entries(parsed), fetcher.version("dict-gcide"), "GPL-2+")


def german_english(fetcher: Fetcher) -> RawSet:
    """Return German nouns and adjectives, labelled with the words of their English translations."""
    pairs = [pair for entry in entries(fetcher.debian("dict-freedict-deu-eng")) if (pair := translations(*entry))]
    chosen = sorted(pairs, key=lambda pair: (hash_fraction(pair[0], "drawn"), pair))[:_GERMAN_ENTRIES]
    uses = Counter(word for _, words in chosen for word in words)
    texts = {f"{head} {number}": Text(head, "", frozenset(word for word in words
                                                          if uses[word] <= _COMMON * len(chosen)))
             for number, (head, words) in enumerate(chosen)}
    return RawSet(texts, {word: (word, "") for word in uses}, fetcher.version("dict-freedict-deu-eng"), "GPL-3+")


Entry = tuple[list[str], str, list[str]]    # headwords, text, words that it refers to


def link_entries(parsed: Iterable[Entry]) -> tuple[dict[str, Text], dict[str, tuple[str, str]]]:
    """Return entries as texts, labelled with the entries that they refer to, and as labels, under the same keys.

    A reference matches any headword in any case, or its singular. Entries with the same headword are merged.
    """
    bodies, references, keys = dict[str, list[str]](), dict[str, set[str]](), dict[str, str]()
    for heads, text, words in parsed:
        key = heads[0]
        bodies.setdefault(key, []).append(text)
        references.setdefault(key, set()).update(words)
        for head in heads:
            keys.setdefault(_lower(head), key)
    texts, labels = {}, {}
    for key, parts in bodies.items():
        content = " ".join(" ".join(parts).split())
        linked = {keys[known] for word in references[key] if (known := _match(word, keys))}
        texts[key], labels[key] = Text(key, content, frozenset(linked - {key})), (key, content)
    return texts, labels


def foldoc_entry(head: str, body: str) -> Entry:
    """Parse an entry of foldoc; references are in {braces} and are left out of the text."""
    heads = [word.strip() for word in head.split("%%%") if word.strip()]
    return heads, _without_references(_DATE.sub("", body)), _REFERENCE.findall(body)


def gcide_entry(head: str, body: str) -> Entry:
    """Parse an entry of gcide; pronunciation, synonyms and words in {braces} are left out of the text."""
    word, slash, rest = head.partition("\\")
    body = _SOURCE.sub("", f"{slash}{rest}\n{body}")
    synonyms = [part.strip() for listed in _SYNONYMS.findall(body) for part in re.split("[;,.]", listed)]
    text = _without_references(_PRONUNCIATION.sub(" ", _SYNONYMS.sub(" ", body))).lstrip(" ,;\n")
    return [word.strip() or head], text, [*_REFERENCE.findall(body), *filter(None, synonyms)]


def translations(head: str, body: str) -> tuple[str, frozenset[str]] | None:
    """Return a German noun (singular) or adjective and the words of its translations; None for other entries."""
    word, kind = re.sub(r"/[^/]*/", "", head).strip(), re.search(r"<([^<>]*)>\s*$", head)
    if kind is None or not ("sg" in kind[1] or "adj" in kind[1]):
        return None
    english = re.sub(r"\[[^]]*\]|<[^>]*>|\([^)]*\)", " ", body.partition("\n")[0])
    words = frozenset(re.findall(r"[a-z][a-z'-]+", english.lower()))
    german = word.partition("<")[0].strip()
    return (german, words) if german and words else None


def _without_references(text: str) -> str:
    return _REFERENCE.sub(" ", text)


def _match(word: str, keys: Mapping[str, str]) -> str:
    """Return the key of a word, or of its singular; "" where there is neither."""
    word = _lower(word)
    return word if word in keys else word[:-1] if word.endswith("s") and word[:-1] in keys else ""


def _lower(word: str) -> str:
    return " ".join(word.lower().split())


def entries(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield (headwords, body) of each entry of an unpacked dictionary, in file order, without repeats."""
    index, = folder.glob("usr/share/dictd/*.index")
    data = gzip.decompress(index.with_suffix(".dict.dz").read_bytes())
    places = {(base64_number(start), base64_number(length)) for word, start, length in
              (line.split("\t")[:3] for line in index.read_text(encoding="utf-8").splitlines())
              if not word.startswith(("00-database", "00database"))}
    for start, length in sorted(places):
        head, _, body = data[start:start + length].decode("utf-8", "replace").partition("\n")
        if head.strip():
            yield head.strip(), body


def base64_number(digits: str) -> int:
    """Parse a number in base 64, as in a dictd index; the first digit is the highest."""
    return int.from_bytes(b64decode(digits.rjust(len(digits) + -len(digits) % 4, "A")))

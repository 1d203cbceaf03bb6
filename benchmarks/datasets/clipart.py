"""Clip art with the keywords that its authors gave it, from the metadata of the pictures in a package of Debian."""

import re
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.datasets.building import RawSet, Text
from benchmarks.datasets.packages import Fetcher

_PACKAGE = "openclipart-svg"
_WORK, _DC, _RDF = "{http://web.resource.org/cc/}Work", "{http://purl.org/dc/elements/1.1/}", \
    "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}"


def clipart(fetcher: Fetcher) -> RawSet:
    """Return the titles and descriptions of pictures, labelled with their keywords."""
    folder = fetcher.debian(_PACKAGE)
    texts = described_pictures(folder, sorted(folder.rglob("*.svg")))
    labels = {word: (word, "") for text in texts.values() for word in text.labels}
    return RawSet(texts, labels, f"Debian {fetcher.version(_PACKAGE)}", "public domain")


def described_pictures(folder: Path, paths: Iterable[Path]) -> dict[str, Text]:
    """Return the pictures that say what they are, by their paths in a folder.

    Pictures that differ in the numbers of their titles are a group: authors number what they draw in several versions.
    Those whose XML is not well-formed are left out.
    """
    texts = {}
    for path in paths:
        try:
            work = ElementTree.parse(path).find(f".//{_WORK}")
        except ElementTree.ParseError:
            continue
        if work is not None and (title := work.findtext(f"{_DC}title", "")):
            words = {(word.text or "").strip().lower() for word in work.iterfind(f"{_DC}subject//{_RDF}li")}
            about = work.findtext(f"{_DC}description", "")
            texts[str(path.relative_to(folder))] = Text(
                title, about if about != title else "", frozenset(filter(_is_word, words)), re.sub(r"\W|\d", "", title))
    return texts


def _is_word(keyword: str) -> bool:
    """Whether it is a keyword, not one that is empty, or that a program left in place of a list of them."""
    return bool(keyword) and not keyword.startswith("hash(0x")

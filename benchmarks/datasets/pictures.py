"""Icons with their tags, and emoji with the keywords that people find them by in several languages, both from npm."""

import json
from collections.abc import Mapping
from typing import Any

from benchmarks.datasets.drawn import Found, Text
from benchmarks.datasets.fetched import Packages

_ICONS = "@tabler/icons@3.52.0"    # pinned, as another release would be another data set
_EMOJI = "cldr-annotations-full@48.2.0"
_LANGUAGES = ("de", "es", "fr", "it", "nl", "pt")


def icons(packages: Packages) -> Found:
    """Return icons' names and categories, labelled with their tags."""
    read = json.loads((packages.npm(_ICONS) / "icons.json").read_text(encoding="utf-8"))
    texts, labels = tagged(read)
    return Found(texts, labels, f"npm {_ICONS}", "MIT")


def emoji(packages: Packages) -> Found:
    """Return emoji's keywords in six languages, a text a language, labelled with their English keywords."""
    folder = packages.npm(_EMOJI) / "annotations"
    known = {language: json.loads((folder / language / "annotations.json").read_text(encoding="utf-8"))
             ["annotations"]["annotations"] for language in (*_LANGUAGES, "en")}
    texts, labels = translated(known)
    return Found(texts, labels, f"npm {_EMOJI}", "Unicode-3.0")


def tagged(read: Mapping[str, Any]) -> tuple[dict[str, Text], dict[str, tuple[str, str]]]:
    """Return icons as texts and their tags as labels."""
    texts = {}
    for key, icon in read.items():
        tags = frozenset(str(tag).strip().lower() for tag in icon["tags"])
        texts[key] = Text(icon["name"].replace("-", " "), icon["category"], tags - {""})
    return texts, {tag: (tag, "") for text in texts.values() for tag in text.labels}


def translated(known: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Text], dict[str, tuple[str, str]]]:
    """Return an emoji's name and keywords in each language but English as a text, its English ones as labels.

    One emoji's texts are a group: training on one of them must not give away another.
    """
    english = {sign: frozenset(word.lower() for word in told.get("default", ())) for sign, told in known["en"].items()}
    texts = {f"{sign} {language}": Text(" ".join(told.get("tts", ())), ", ".join(told["default"]), english[sign], sign)
             for language in known if language != "en" for sign, told in known[language].items()
             if sign in english and "default" in told}
    return texts, {word: (word, "") for text in texts.values() for word in text.labels}

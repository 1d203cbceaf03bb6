"""Icons with their tags, and emoji with their search keywords in several languages, both from npm."""

import json
from collections.abc import Mapping
from typing import Any

from benchmarks.datasets.building import RawSet, Text
from benchmarks.datasets.packages import Fetcher

_ICONS = "@tabler/icons@3.52.0"    # pinned, as another release would be another data set
_EMOJI = "cldr-annotations-full@48.2.0"
_LANGUAGES = ("de", "es", "fr", "it", "nl", "pt")


def icons(fetcher: Fetcher) -> RawSet:
    """Return the names and categories of icons, labelled with their tags."""
    parsed = json.loads((fetcher.npm(_ICONS) / "icons.json").read_text(encoding="utf-8"))
    return RawSet(*tagged_icons(parsed), f"npm {_ICONS}", "MIT")


def emoji(fetcher: Fetcher) -> RawSet:
    """Return the keywords of emoji, one text per language (six), labelled with their English keywords."""
    folder = fetcher.npm(_EMOJI) / "annotations"
    annotations = {language: json.loads((folder / language / "annotations.json").read_text(encoding="utf-8"))
             ["annotations"]["annotations"] for language in (*_LANGUAGES, "en")}
    return RawSet(*emoji_texts(annotations), f"npm {_EMOJI}", "Unicode-3.0")


def tagged_icons(parsed: Mapping[str, Any]) -> tuple[dict[str, Text], dict[str, tuple[str, str]]]:
    """Return icons as texts and their tags as labels."""
    texts = {}
    for key, icon in parsed.items():
        tags = frozenset(str(tag).strip().lower() for tag in icon["tags"])
        texts[key] = Text(icon["name"].replace("-", " "), icon["category"], tags - {""})
    return texts, {tag: (tag, "") for text in texts.values() for tag in text.labels}


def emoji_texts(annotations: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Text], dict[str, tuple[str, str]]]:
    """Return the name and keywords of each emoji in each other language as a text, English keywords as labels.

    The texts of one emoji are a group, so that none is in train if another is in test.
    """
    english = {emoji: frozenset(word.lower() for word in entry.get("default", ()))
               for emoji, entry in annotations["en"].items()}
    texts = {f"{emoji} {language}": Text(" ".join(entry.get("tts", ())), ", ".join(entry["default"]), english[emoji],
                                         emoji)
             for language in annotations if language != "en" for emoji, entry in annotations[language].items()
             if emoji in english and "default" in entry}
    return texts, {word: (word, "") for text in texts.values() for word in text.labels}

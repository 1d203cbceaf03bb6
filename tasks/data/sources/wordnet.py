"""WordNet as an extreme classification data set, in the XC repository's raw format.

A synset's text is the query, the synsets that it points to are its labels. The
format is described in the manual page wndb(5WN), lexicographer files in lexnames(5WN).
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_contracts.errors import ContractError
from tasks.data.sources import writing
from tasks.data.sources.files import text_lines
from tasks.data.sources.point_split import Split, split_points, write_split
from tasks.data.sources.raw import BROADER
from tasks.data.sources.wordnet_database import DATA_FILES, database
from xcmodels.data.text import clean

TEST_SHARE = 0.25
# Hyponyms would give the root of the noun tree hundreds of labels; antonyms are not similar.
_NOT_LABELS = {"~", "~i", "!"}
_BROADER = {"@", "@i"}    # hypernyms, of a kind and of an instance
_MARKER = re.compile(r"\((?:a|p|ip)\)$")
_WORD = re.compile(r"[^\W_]+(?:['’.-][^\W_]+)*")
_LONGEST = 3  # most words of a lemma that is searched for in glosses
_COMMON = 0.01  # share of glosses above which a lemma is too common

_FILES = (
    "adj.all adj.pert adv.all noun.Tops noun.act noun.animal noun.artifact noun.attribute noun.body noun.cognition "
    "noun.communication noun.event noun.feeling noun.food noun.group noun.location noun.motive noun.object "
    "noun.person noun.phenomenon noun.plant noun.possession noun.process noun.quantity noun.relation noun.shape "
    "noun.state noun.substance noun.time verb.body verb.change verb.cognition verb.communication verb.competition "
    "verb.consumption verb.contact verb.creation verb.emotion verb.motion verb.perception verb.possession "
    "verb.social verb.stative verb.weather adj.ppl")
LEXICOGRAPHER_FILES = tuple(_FILES.split())


@dataclass(frozen=True)
class Synset:
    """One meaning: its words, its definition, the number of its lexicographer file, and the keys it points to.

    broader: the keys of those that are more general.
    """

    lemmas: tuple[str, ...]
    gloss: str
    category: int
    targets: frozenset[str]
    broader: frozenset[str] = frozenset()

    @property
    def title(self) -> str:
        return clean(", ".join(self.lemmas))


def write_wordnet(out: Path, source: Path | None = None) -> dict[str, int]:
    """Write WordNet in the XC repository's raw format, with two anchor sets, and return what was counted.

    `source` is a folder with data.noun and its fellows, or with a dict/ that holds them; without one, it is fetched.
    The same database gives the same bytes. `out` is created once all is written; an earlier data set written here is
    replaced.
    Raises UsageError for an `out` or a `source` that cannot be used, ProjectError when nothing could be fetched.
    """
    writing.refuse_foreign(out)
    with database(source) as (folder, origin):
        synsets = read_synsets(folder)
    texts = {key: (synset.title, synset.gloss) for key, synset in synsets.items()}
    targets = {key: synset.targets for key, synset in synsets.items()}
    split = split_points(targets, {key for key in synsets if is_test(key)})
    about = {"name": "wordnet", "propensity": {"a": 0.55, "b": 1.5}, "source": origin}
    with writing.raw_folder(out, about) as raw:
        counts = {"synsets": len(synsets)} | write_split(raw, split, targets, texts, texts)
        counts["broader_pairs"] = writing.write_lines(raw / BROADER, (
            f"{key}\t{other}" for key, synset in synsets.items() for other in sorted(synset.broader)))
        for anchor, (titles, edges) in {"category": categories(synsets), "hyper_link": links(synsets, split)}.items():
            counts[f"anchors_{anchor}"] = writing.write_lines(raw / f"{anchor}.raw.txt", titles)
            for side, keys in (("trn", split.train), ("tst", split.test), ("lbl", split.labels)):
                counts[f"edges_{anchor}_{side}"] = writing.write_sparse(raw / f"{anchor}_{side}_X_Y.txt",
                                                                [edges[key] for key in keys], len(titles))
    return counts


# ---- the database

def read_synsets(folder: Path) -> dict[str, Synset]:
    """Return every synset of a database by its key, sorted: a letter for the part of speech and the file offset.

    Raises ContractError naming file and line of a line that cannot be read, or a synset that points nowhere.
    """
    synsets = {}
    for name in DATA_FILES:
        for number, line in text_lines(folder / name):
            if line.startswith("  ") or not line:  # the licence at the head of each file
                continue
            try:
                key, synset = parse_synset(line)
            except (ValueError, IndexError) as error:
                raise ContractError(f"the line is not a synset in WordNet's format: {line[:80]!r}",
                                    where=f"{name}:{number}",
                                    hint="give a database of WordNet 3.0 or 3.1 that is not changed") from error
            synsets[key] = synset
    for key, synset in synsets.items():
        if lost := synset.targets.difference(synsets):
            raise ContractError(f"synset {key} points to {min(lost)}, which is in none of {', '.join(DATA_FILES)}",
                                where=str(folder), hint="the four files must be of the same release")
    if not synsets:
        raise ContractError("the database holds no synset", where=str(folder))
    return dict(sorted(synsets.items()))


def parse_synset(line: str) -> tuple[str, Synset]:
    """Return the key and the synset of one line: offset, file number, kind, words, pointers, and after a bar the gloss.

    Raises ValueError or IndexError for any other line.
    """
    head, bar, gloss = line.partition("|")
    fields = head.split()
    words = int(fields[3], 16)  # the only hexadecimal count
    lemmas = tuple(_MARKER.sub("", fields[4 + 2 * i]).replace("_", " ") for i in range(words))
    start = 4 + 2 * words  # of the pointers, after their count
    pointers = [fields[start + 1 + 4 * i:start + 5 + 4 * i] for i in range(int(fields[start]))]
    broader = frozenset(_key(kind, offset) for symbol, offset, kind, _ in pointers if symbol in _BROADER)
    targets = frozenset(_key(kind, offset) for symbol, offset, kind, _ in pointers if symbol not in _NOT_LABELS)
    category = int(fields[1])
    if not (bar and words and 0 <= category < len(LEXICOGRAPHER_FILES)):
        raise ValueError("a part is missing")
    return _key(fields[2], fields[0]), Synset(lemmas, clean(gloss), category, targets, broader)


def _key(kind: str, offset: str) -> str:
    """Return a synset's key; satellite adjectives (s) are in the file of adjectives, and pointers use a for them."""
    if kind not in set("nvasr") or len(offset) != 8 or not offset.isdigit():
        raise ValueError(f"no synset is called {kind}{offset}")
    return ("a" if kind == "s" else kind) + offset


# ---- queries and labels

def is_test(key: str) -> bool:
    """Say whether a synset is for testing, from its key alone, so that no other synset can change it."""
    return int(hashlib.sha1(key.encode()).hexdigest()[:8], 16) / 16**8 < TEST_SHARE


# ---- anchor sets

def categories(synsets: dict[str, Synset]) -> tuple[Sequence[str], dict[str, list[int]]]:
    """Return the names of the lexicographer files, and by synset the id of its file."""
    return LEXICOGRAPHER_FILES, {key: [synset.category] for key, synset in synsets.items()}


def links(synsets: dict[str, Synset], split: Split) -> tuple[list[str], dict[str, list[int]]]:
    """Return the lemmas that occur in glosses, sorted, and by synset the ids of those in its gloss.

    Words are matched by spelling, in any meaning: noisy on purpose, as links between real pages are.
    Left out are lemmas in only one gloss, and those in more than 1% of them (never fewer than three).
    """
    known = {words for synset in synsets.values() for lemma in synset.lemmas
             if 0 < len(words := tuple(_words(lemma))) <= _LONGEST}
    grams_of = {key: {gram for gram in _grams(_words(synsets[key].gloss)) if gram in known}
                for key in {*split.train, *split.test, *split.labels}}
    glosses = Counter(gram for grams in grams_of.values() for gram in grams)
    most = max(2, int(_COMMON * len(grams_of)))
    kept = sorted(" ".join(gram) for gram, count in glosses.items() if 2 <= count <= most)
    ids = {title: number for number, title in enumerate(kept)}
    return kept, {key: sorted(ids[title] for gram in grams if (title := " ".join(gram)) in ids)
                  for key, grams in grams_of.items()}


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _grams(words: list[str]) -> Iterable[tuple[str, ...]]:
    return (tuple(words[start:start + length]) for length in range(1, _LONGEST + 1)
            for start in range(len(words) - length + 1))

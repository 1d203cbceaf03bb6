"""A controlled vocabulary: its concepts, their names and relations; SKOS, or Annif's CSV and TSV."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_contracts.errors import ContractError, UsageError
from tasks.data.sources.annif import bare_uri, is_uri
from tasks.data.sources.columns import Layout
from tasks.data.sources.files import text_lines
from tasks.data.sources.skos import FORMS, Terms, read_skos
from tasks.data.sources.tabular import file_kind, read_rows
from tasks.data.sources.writing import write_lines, write_sparse
from xcmodels.data.text import clean

_HEADER = re.compile(r"label_([A-Za-z-]+)")


@dataclass(frozen=True)
class Concept:
    """A concept: its name, and its other names as one text."""

    title: str
    content: str


@dataclass(frozen=True)
class Vocabulary:
    """Concepts by URI, and by relation (broader, related) the URIs that each is linked to.

    uris: name -> the URI of the only concept that has it as a preferred name. left_out: counts of what is no concept.
    """

    file: Path
    concepts: Mapping[str, Concept]
    uris: Mapping[str, str]
    relations: Mapping[str, Mapping[str, set[str]]]
    left_out: Mapping[str, int]

    def find(self, *names: str) -> str | None:
        """Return the URI of the concept that has one of a label's names as its URI, or else as a preferred name."""
        found = [*(uri for name in names if (uri := bare_uri(name)) in self.concepts),
                 *(self.uris[name] for name in names if name in self.uris)]
        return found[0] if found else None


def read_vocabulary(file: Path, languages: Sequence[str] = ()) -> Vocabulary:
    """Read a vocabulary, with names in some languages, the most wanted first; all, if its names are in one language.

    A concept's title is its preferred name in the first language that has one; its other names in these languages are
    its content. Concepts that are deprecated or have no name in them are counted and left out.
    Raises UsageError for an unknown kind of file and for languages that are not in it, ContractError with file and
    line for one that cannot be read.
    """
    if not file.is_file():
        raise UsageError(f"{file} is not a file", hint="name a vocabulary: --vocabulary FILE")
    if (kind := file_kind(file)) not in READERS:
        raise UsageError(f"{file} is of no kind that can be read as a vocabulary",
                         hint=f"known are {', '.join(READERS)}")
    terms = READERS[kind](file)
    rank = _ranks(file, terms, [language.lower() for language in languages])
    concepts: dict[str, Concept] = {}
    uris: dict[str, str] = {}
    ambiguous = set()
    for uri in sorted(terms.preferred):
        names, others = _names(terms.preferred[uri], rank), _names(terms.other.get(uri, ()), rank)
        if names:
            concepts[uri] = Concept(names[0], "; ".join(dict.fromkeys(
                name for name in [*names, *others] if name != names[0])))
            ambiguous |= {name for name in names if uris.setdefault(name, uri) != uri}
    if not concepts:
        raise ContractError("it holds no concept with a preferred name", where=str(file),
                            hint="a concept of SKOS has the type skos:Concept and a skos:prefLabel")
    left_out = {"concepts_deprecated": terms.deprecated, "concepts_without_name": len(terms.preferred) - len(concepts)}
    return Vocabulary(file, concepts, {name: uri for name, uri in uris.items() if name not in ambiguous},
                      terms.relations, left_out)


def write_graphs(vocabulary: Vocabulary, labels: Sequence[str], train: int, folder: Path) -> dict[str, int]:
    """Write an anchor set for each relation of the labels, and return how many edges each has.

    A label's anchors are the concepts that it is linked to, labels or not. Training queries, `train` of them, have
    none. A relation without edges is left out.
    """
    counts = {}
    for relation, links in vocabulary.relations.items():
        linked = [links.get(uri, set()) & vocabulary.concepts.keys() for uri in labels]
        if anchors := sorted(set().union(*linked)):
            ids = {uri: number for number, uri in enumerate(anchors)}
            write_lines(folder / f"{relation}.raw.txt", (vocabulary.concepts[uri].title for uri in anchors))
            counts[f"{relation}_edges"] = write_sparse(folder / f"{relation}_lbl_X_Y.txt",
                                                       [sorted(ids[uri] for uri in uris) for uris in linked], len(ids))
            write_sparse(folder / f"{relation}_trn_X_Y.txt", [()] * train, len(ids))
    return counts


def write_broader(vocabulary: Vocabulary, file: Path) -> dict[str, int]:
    """Write which concepts are broader than which, labels or not, and return how many pairs; no file for none.

    Those without a name in the languages, too: a branch may go through them.
    """
    links = vocabulary.relations.get("broader", {})
    pairs = [f"{uri}\t{other}" for uri in sorted(links) for other in sorted(links[uri])]
    return {"broader_pairs": write_lines(file, pairs)} if pairs else {}


# ---- languages

def _ranks(file: Path, terms: Terms, wanted: Sequence[str]) -> Callable[[str], int | None]:
    """Return a function from a name's language to its place among the wanted ones, None for another language.

    Names without a language come after all others. A language includes its variants, which come after it: en is en-GB,
    too.
    """
    found = Counter(language for names in terms.preferred.values() for language, _ in names if language)
    has = f"it has {', '.join(f'{language} ({count:,})' for language, count in found.most_common())}"
    most = [language for language, _ in found.most_common(2)]
    if not wanted and len({language.partition("-")[0] for language in found}) > 1:
        raise UsageError(f"{file} has names in several languages; {has}",
                         hint=f"choose one, --language {most[0]}, or several, the most wanted first: --language "
                              f"{','.join(most)}")
    for language in wanted:
        if found and not any(_is(other, language) for other in found):
            raise UsageError(f"{file} has no preferred name in {language!r}; {has}", hint=f"--language {most[0]}")
    return lambda language: 2 * len(wanted) if not language or not wanted else next(
        (2 * place + (language != other) for place, other in enumerate(wanted) if _is(language, other)), None)


def _is(language: str, wanted: str) -> bool:
    return language == wanted or language.startswith(f"{wanted}-")


def _names(names: Iterable[tuple[str, str]], rank: Callable[[str], int | None]) -> list[str]:
    """Return the names in wanted languages, cleaned, the most wanted first, then in alphabetical order."""
    ranked = sorted((place, clean(name)) for language, name in names if (place := rank(language)) is not None)
    return [name for _, name in ranked if name]


# ---- Annif's own forms, described in its wiki, "Subject vocabulary formats"

def _read_tsv(file: Path) -> Terms:
    """Return the concepts of lines `<URI> tab name`; further columns, such as notations, are left out."""
    terms = Terms()
    for number, line in text_lines(file):
        if not line.strip():
            continue
        uri, tab, rest = line.partition("\t")
        if not tab or not is_uri(uri.strip()):
            raise ContractError(f"the line is not a URI, a tab and a name: {line[:80]!r}", where=f"{file}:{number}",
                                hint="<http://example.org/c1>, a tab, computer science")
        _add(terms, uri, [("", rest.partition("\t")[0])], f"{file}:{number}")
    return terms


def _read_csv(file: Path) -> Terms:
    """Return the concepts of a table with columns `uri` and `label_en`, `label_fi`, ..."""
    header = next((line for _, line in text_lines(file) if line.strip()), "")
    languages = dict.fromkeys(_HEADER.findall(header))
    columns = {"uri": ("uri",), **{f"label_{language}": (f"label_{language}",) for language in languages}}
    if not languages:
        raise UsageError(f"{file} has no column of names; its first line is {header[:80]!r}",
                         hint="a vocabulary's columns are uri and label_en, label_fi, ...")
    terms = Terms()
    for row in read_rows(file, Layout(columns, ("uri",))):
        _add(terms, row.text("uri"), [(language.lower(), row.text(f"label_{language}")) for language in languages],
             row.where)
    return terms


def _add(terms: Terms, uri: str, names: Iterable[tuple[str, str]], where: str) -> None:
    if not (uri := bare_uri(uri)):
        raise ContractError("the concept has no URI", where=where)
    if uri in terms.preferred:
        raise ContractError(f"the concept {uri} is in the file twice", where=where, hint="remove one of the two")
    terms.preferred[uri] = [(language, name) for language, name in names if clean(name)]


READERS: dict[str, Callable[[Path], Terms]] = {**dict.fromkeys(FORMS, read_skos), ".csv": _read_csv, ".tsv": _read_tsv}

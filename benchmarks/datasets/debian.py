"""Debian's packages: a description is the text, what the package depends on or is tagged with its labels."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.datasets.drawn import Found, Text
from benchmarks.datasets.fetched import Packages, paragraphs

_RELATIONS = ("Depends", "Pre-Depends", "Recommends", "Suggests")
_COMMON = 0.05    # share of texts above which a dependency, libc6 first of all, says nothing about them
_NOT_LABELS = ("special::", "implemented-in::TODO")    # the first are about the tagging itself
PROGRAMS = ("admin", "database", "editors", "education", "electronics", "games", "gnome", "graphics", "hamradio",
            "httpd", "kde", "mail", "math", "net", "science", "sound", "text", "utils", "vcs", "video", "web", "x11",
            "xfce")
MODULES = ("gnu-r", "golang", "haskell", "java", "javascript", "perl", "php", "python", "ruby")
LICENCE = "descriptions as the packages (free software, mostly GPL-2+); translations GPL-2+; tags public domain"


@dataclass(frozen=True)
class Package:
    """A package's description in one language, in a line and whole; what it wants, its tags and section."""

    synopsis: str
    text: str
    wants: frozenset[str]
    tags: frozenset[str]
    section: str


def programs(packages: Packages) -> Found:
    """Return descriptions of programs that people start, labelled with the packages they want."""
    return dependencies(_known(packages, "en"), PROGRAMS, packages.release())


def modules(packages: Packages) -> Found:
    """Return descriptions of modules of nine languages, labelled with the packages they want."""
    return dependencies(_known(packages, "en"), MODULES, packages.release())


def german(packages: Packages) -> Found:
    """Return German descriptions of all packages that have one, labelled with the packages they want, in German too."""
    return dependencies(_known(packages, "de"), (), packages.release())


def _known(packages: Packages, language: str) -> dict[str, Package]:
    return read_packages(packages.available(), packages.descriptions(language), language)


def dependencies(known: Mapping[str, Package], sections: Sequence[str], source: str) -> Found:
    """Return descriptions of the packages in some sections, of all without one, labelled with the packages they want.

    What a package is called is part of a label's text and of no description's.
    """
    chosen = [name for name, package in known.items() if not sections or package.section in sections]
    uses = Counter(wanted for name in chosen for wanted in known[name].wants)
    kept = {wanted for wanted, times in uses.items() if times <= _COMMON * len(chosen) and wanted in known}
    return Found({name: Text(known[name].synopsis, known[name].text, known[name].wants & kept) for name in chosen},
                 {name: (f"{name}: {known[name].synopsis}", "") for name in kept}, source, LICENCE)


def debtags(packages: Packages) -> Found:
    """Return descriptions of every package that is tagged, labelled with its tags."""
    known = _known(packages, "en")
    texts = {key: Text(package.synopsis, package.text, package.tags) for key, package in known.items() if package.tags}
    labels = {tag: (tag_text(tag), "") for text in texts.values() for tag in text.labels}
    return Found(texts, labels, packages.release(), LICENCE)


def read_packages(available: str, descriptions: str, language: str) -> dict[str, Package]:
    """Return packages by name from apt's list and the long descriptions in a language; without one, none."""
    long = {fields["Description-md5"]: fields[f"Description-{language}"] for fields in paragraphs(descriptions)
            if f"Description-{language}" in fields and "Description-md5" in fields}
    read = {}
    for fields in paragraphs(available):
        if (told := long.get(fields.get("Description-md5", ""))) is not None:
            name, (synopsis, _, text) = fields["Package"], told.partition("\n")
            read[name] = Package(synopsis, plain(text), wanted(fields), tags(fields.get("Tag", "")),
                                 fields.get("Section", ""))
    return read


def wanted(fields: Mapping[str, str]) -> frozenset[str]:
    """Return the packages a package depends on, recommends or suggests; of alternatives the first."""
    names = (re.match(r"[a-z0-9][a-z0-9+.-]*", entry.split("|")[0].strip())
             for relation in _RELATIONS for entry in fields.get(relation, "").replace("\n", " ").split(","))
    return frozenset(name[0] for name in names if name)


def tags(field: str) -> frozenset[str]:
    """Return the tags of a Tag field, where {a,b} in one stands for either."""
    found = set[str]()
    for tag in re.findall(r"[^\s,{]+(?:\{[^}]*\})?", field):
        stem, _, ends = tag.partition("{")
        found.update(stem + end for end in ends.rstrip("}").split(","))
    return frozenset(tag for tag in found if "::" in tag and not tag.startswith(_NOT_LABELS) and "TODO" not in tag)


def tag_text(tag: str) -> str:
    """Return a tag as words: works-with::image:raster is "works with: image raster"."""
    facet, _, value = tag.partition("::")
    return f"{facet.replace('-', ' ')}: {re.sub('[-:]', ' ', value)}"


def plain(text: str) -> str:
    """Return a long description as one line: its lines joined, the dots for empty ones gone."""
    return " ".join(line.strip() for line in text.splitlines() if line.strip() not in ("", "."))

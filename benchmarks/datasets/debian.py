"""Debian's packages: the text is a description, its labels are the dependencies or the tags of the package."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.datasets.building import RawSet, Text
from benchmarks.datasets.packages import Fetcher, paragraphs

_RELATIONS = ("Depends", "Pre-Depends", "Recommends", "Suggests")
_COMMON = 0.05    # a dependency of a larger share of packages (such as libc6) is no label
_NOT_LABELS = ("special::", "implemented-in::TODO")    # special:: tags are about the tagging itself
PROGRAMS = ("admin", "database", "editors", "education", "electronics", "games", "gnome", "graphics", "hamradio",
            "httpd", "kde", "mail", "math", "net", "science", "sound", "text", "utils", "vcs", "video", "web", "x11",
            "xfce")
MODULES = ("gnu-r", "golang", "haskell", "java", "javascript", "perl", "php", "python", "ruby")
LICENCE = "descriptions as the packages (free software, mostly GPL-2+); translations GPL-2+; tags public domain"


@dataclass(frozen=True)
class Package:
    """A package; synopsis, text: its description in one line and in full, in one language."""

    synopsis: str
    text: str
    dependencies: frozenset[str]
    tags: frozenset[str]
    section: str


def dependencies(fetcher: Fetcher, language: str, sections: Sequence[str] = ()) -> RawSet:
    """Return descriptions in a language of packages in some sections, in all if none is given, with dependencies."""
    return labelled_with_dependencies(_packages(fetcher, language), sections, fetcher.release())


def _packages(fetcher: Fetcher, language: str) -> dict[str, Package]:
    return read_packages(fetcher.package_list(), fetcher.descriptions(language), language)


def labelled_with_dependencies(packages: Mapping[str, Package], sections: Sequence[str], source: str) -> RawSet:
    """Return descriptions of the packages in some sections (in all if none is given), labelled with dependencies.

    A package's name is part of its label text, but not of its description.
    """
    chosen = {name: package for name, package in packages.items() if not sections or package.section in sections}
    uses = Counter(dependency for package in chosen.values() for dependency in package.dependencies)
    labels = {name for name, count in uses.items() if count <= _COMMON * len(chosen) and name in packages}
    return RawSet({name: Text(package.synopsis, package.text, package.dependencies & labels)
                   for name, package in chosen.items()},
                  {name: (f"{name}: {packages[name].synopsis}", "") for name in labels}, source, LICENCE)


def debtags(fetcher: Fetcher) -> RawSet:
    """Return descriptions of all packages with tags, labelled with their tags."""
    texts = {name: Text(package.synopsis, package.text, package.tags)
             for name, package in _packages(fetcher, "en").items() if package.tags}
    labels = {tag: (tag_text(tag), "") for text in texts.values() for tag in text.labels}
    return RawSet(texts, labels, fetcher.release(), LICENCE)


def read_packages(package_list: str, descriptions: str, language: str) -> dict[str, Package]:
    """Parse apt's list of packages and the descriptions in a language; return packages by name.

    Packages without a description in that language are left out.
    """
    by_digest = {fields["Description-md5"]: fields[f"Description-{language}"] for fields in paragraphs(descriptions)
                 if f"Description-{language}" in fields and "Description-md5" in fields}
    found = {}
    for fields in paragraphs(package_list):
        if (description := by_digest.get(fields.get("Description-md5", ""))) is not None:
            synopsis, _, text = description.partition("\n")
            found[fields["Package"]] = Package(synopsis, one_line(text), dependency_names(fields),
                                               tags(fields.get("Tag", "")), fields.get("Section", ""))
    return found


def dependency_names(fields: Mapping[str, str]) -> frozenset[str]:
    """Return the packages that a package depends on, recommends or suggests; of alternatives the first."""
    names = (re.match(r"[a-z0-9][a-z0-9+.-]*", entry.split("|")[0].strip())
             for relation in _RELATIONS for entry in fields.get(relation, "").replace("\n", " ").split(","))
    return frozenset(name[0] for name in names if name)


def tags(field: str) -> frozenset[str]:
    """Return the tags of a Tag field; x::{a,b} stands for x::a and x::b."""
    found = set[str]()
    for tag in re.findall(r"[^\s,{]+(?:\{[^}]*\})?", field):
        stem, _, ends = tag.partition("{")
        found.update(stem + end for end in ends.rstrip("}").split(","))
    return frozenset(tag for tag in found if "::" in tag and not tag.startswith(_NOT_LABELS) and "TODO" not in tag)


def tag_text(tag: str) -> str:
    """Return a tag as words, such as "works with: image raster" for works-with::image:raster."""
    facet, _, value = tag.partition("::")
    return f"{facet.replace('-', ' ')}: {re.sub('[-:]', ' ', value)}"


def one_line(text: str) -> str:
    """Join the lines of a description; a line with a single dot stands for an empty one."""
    return " ".join(line.strip() for line in text.splitlines() if line.strip() not in ("", "."))

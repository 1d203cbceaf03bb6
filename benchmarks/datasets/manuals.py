"""Manual pages: the text is a description, its labels are the pages listed under SEE ALSO."""

import gzip
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.datasets.building import RawSet, Text
from benchmarks.datasets.packages import Fetcher
from benchmarks.datasets.roff import sections

_PACKAGES = ("manpages", "manpages-dev", "freebsd-manpages", "libx11-doc", "libssl-doc", "ncurses-doc", "perl-doc",
             "libcurl4-doc", "git-man", "netpbm", "openmpi-doc", "tcl8.6-doc", "tk8.6-doc", "tcllib")
_LICENCE = "as the pages: BSD, MIT, Apache-2.0, GPL-1+ or Artistic, GPL-2, Tcl, Linux man pages' own"
_NUMBERED_NAME = re.compile(r"([A-Za-z_][\w.:+-]*)\s?\((\d|n)\w*\)")    # open(2)
_PLAIN_NAME = re.compile(r"\b(?:perl\w+|\w+(?:::\w+)+|[A-Za-z]+_\w+)\b")    # perlop, File::Copy, MPI_Send


@dataclass(frozen=True)
class Page:
    """A page; title: its line in the table of contents. text: its description. see_also: names of other pages."""

    names: tuple[str, ...]
    title: str
    text: str
    see_also: frozenset[str]


def manuals(fetcher: Fetcher) -> RawSet:
    """Return the pages of fourteen packages, labelled with the pages under SEE ALSO."""
    pages = {f"{package} {path.name.removesuffix('.gz')}": page for package in _PACKAGES
             for path in sorted(fetcher.debian(package).glob("usr/share/man/man*/*"))
             if (page := read_page(path.name, _source(path)))}
    return RawSet(*link_pages(pages), ", ".join(map(fetcher.version, _PACKAGES)), _LICENCE)


def link_pages(pages: Mapping[str, Page]) -> tuple[dict[str, Text], dict[str, tuple[str, str]]]:
    """Return pages as texts and as labels, by "package file"; a label's text is the title of its page.

    A name refers to a page of the same package, or else of any.
    """
    known: dict[str, str] = {}
    for key, page in pages.items():
        for name in page.names:
            known.setdefault(f"{key.split()[0]} {name}", key)
            known.setdefault(name, key)
    texts = {}
    for key, page in pages.items():
        linked = {known.get(f"{key.split()[0]} {name}") or known.get(name) for name in page.see_also}
        texts[key] = Text(page.title, page.text, frozenset(other for other in linked if other and other != key))
    return texts, {key: (page.title, "") for key, page in pages.items()}


def read_page(file: str, source: str) -> Page | None:
    """Parse a page; return None where it has no description, for example where it only refers to another page.

    Names of other pages, such as open(2), are cut out of the text.
    """
    parts = sections(source)
    title, text = parts.get("NAME", ""), parts.get("DESCRIPTION", "")
    file_name = re.match(r"(.+)\.(\w)[^.]*$", file.removesuffix(".gz"))
    if not (title and text and file_name):
        return None
    name, section = file_name.groups()
    names = {name, *re.split(r"[\s,]+", title.partition(" - ")[0])} - {""}
    see = parts.get("SEE ALSO", "")
    references = {f"{word}({number})" for word, number in _NUMBERED_NAME.findall(see)} | set(_PLAIN_NAME.findall(see))
    return Page(tuple(sorted({*names, *(f"{word}({section})" for word in names)})), title, _NUMBERED_NAME.sub("", text),
                frozenset(references))


def _source(path: Path) -> str:
    """Return the source of a page; "" for a symbolic link, which may lead out of the package."""
    if not path.is_file() or path.is_symlink():
        return ""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return data.decode("utf-8", "replace")

"""Manual pages: what one describes is the text, the pages it says to see also are its labels."""

import gzip
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.datasets.drawn import Found, Text
from benchmarks.datasets.fetched import Packages
from benchmarks.datasets.roff import sections

_PACKAGES = ("manpages", "manpages-dev", "freebsd-manpages", "libx11-doc", "libssl-doc", "ncurses-doc", "perl-doc",
             "libcurl4-doc", "git-man", "netpbm", "openmpi-doc", "tcl8.6-doc", "tk8.6-doc", "tcllib")
_LICENCE = "as the pages: BSD, MIT, Apache-2.0, GPL-1+ or Artistic, GPL-2, Tcl, Linux man pages' own"
_NAMED = re.compile(r"([A-Za-z_][\w.:+-]*)\s?\((\d|n)\w*\)")    # open(2)
_BARE = re.compile(r"\b(?:perl\w+|\w+(?:::\w+)+|[A-Za-z]+_\w+)\b")    # perlop, File::Copy, MPI_Send


@dataclass(frozen=True)
class Page:
    """A page: every name it goes by, its line in the table of contents, what it describes, what it says to see."""

    names: tuple[str, ...]
    title: str
    text: str
    see: frozenset[str]


def manuals(packages: Packages) -> Found:
    """Return pages of fourteen packages, labelled with pages of the same package, or else of any."""
    pages = {f"{package} {path.name.removesuffix('.gz')}": page for package in _PACKAGES
             for path in sorted(packages.debian(package).glob("usr/share/man/man*/*"))
             if (page := read(path.name, _source(path)))}
    texts, labels = linked(pages)
    return Found(texts, labels, ", ".join(map(packages.version, _PACKAGES)), _LICENCE)


def linked(pages: Mapping[str, Page]) -> tuple[dict[str, Text], dict[str, tuple[str, str]]]:
    """Return pages by "package file" as texts and as labels, whose text is their line in the table of contents."""
    known: dict[str, str] = {}
    for key, page in pages.items():
        for name in page.names:
            known.setdefault(f"{key.split()[0]} {name}", key)
            known.setdefault(name, key)
    texts = {}
    for key, page in pages.items():
        seen = {known.get(f"{key.split()[0]} {name}") or known.get(name) for name in page.see}
        texts[key] = Text(page.title, page.text, frozenset(found for found in seen if found and found != key))
    return texts, {key: (page.title, "") for key, page in pages.items()}


def read(file: str, source: str) -> Page | None:
    """Return a page by its file's name and content; None where it describes nothing, as one that names another.

    Other pages are not named in the text, wherever it says open(2).
    """
    parts = sections(source)
    title, text = parts.get("NAME", ""), parts.get("DESCRIPTION", "")
    called = re.match(r"(.+)\.(\w)[^.]*$", file.removesuffix(".gz"))
    if not (title and text and called):
        return None
    name, section = called.groups()
    names = {name, *re.split(r"[\s,]+", title.partition(" - ")[0])} - {""}
    see = parts.get("SEE ALSO", "")
    wanted = {f"{word}({number})" for word, number in _NAMED.findall(see)} | set(_BARE.findall(see))
    return Page(tuple(sorted({*names, *(f"{word}({section})" for word in names)})), title, _NAMED.sub("", text),
                frozenset(wanted))


def _source(path: Path) -> str:
    """Return a page's source; a link that leads out of its package has none."""
    if not path.is_file() or path.is_symlink():
        return ""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return data.decode("utf-8", "replace")

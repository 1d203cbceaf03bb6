"""Documents with labels, as `xc data import` reads them: the formats, and how each is detected."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from data_contracts.errors import UsageError
from tasks.core.files import file_digest
from tasks.data.sources import annif, huggingface, marc
from tasks.data.sources.columns import Layout, Row
from tasks.data.sources.skos import FORMS as VOCABULARIES
from tasks.data.sources.tabular import KINDS, file_kind, read_rows

Columns = Mapping[str, Sequence[str]]    # role -> the possible names of its column


@dataclass(frozen=True)
class DocumentFormat:
    """A format of documents with labels.

    read: yields a `Row` for each document, with cells for the roles of `columns`: "labels" a list of names or URIs,
    and where a format has two names of a label, the second in the list "also".
    columns: those that are read where the user names none. named: the user may name others. tabular: it is read as a
    table where the user names the column of the texts or of the labels.
    splits: whether the documents are in train and test already, as the cell "split" says then.
    """

    name: str
    detect: Callable[[Path], bool]
    read: Callable[[Path, Columns], Iterator[Row]]
    columns: Columns = field(default_factory=dict)
    named: bool = False
    tabular: bool = False
    splits: Callable[[Path], bool] = lambda path: False


def _table(path: Path, columns: Columns) -> Iterator[Row]:
    return read_rows(path, Layout(columns, tuple(columns)))


FORMATS = (
    DocumentFormat("a folder of Hugging Face's datasets", huggingface.is_dataset, huggingface.read,
                   {"text": ("text",), "labels": ("labels", "label")}, named=True, splits=huggingface.has_splits),
    DocumentFormat("a folder of Annif's full texts", annif.is_folder, annif.read_folder, {"uid": ("uid",)}),
    DocumentFormat("MARC", marc.is_marc, marc.read,
                   {"text": ("245ab",), "labels": ("650a",), "uid": ("001",)}, named=True),
    DocumentFormat("Annif's TSV", annif.is_tsv, annif.read_tsv, tabular=True),
    DocumentFormat("Annif's JSON lines", annif.is_json, annif.read_json, tabular=True),
    DocumentFormat("Annif's CSV", annif.is_csv, annif.read_csv,
                   {"text": ("text",), "labels": ("subject_uris",)}, named=True, tabular=True))
TABLE = DocumentFormat("a table", Path.is_file, _table, named=True)


@dataclass(frozen=True)
class Documents:
    """Documents with labels on disk; columns: of each role that is read."""

    path: Path
    format: DocumentFormat
    columns: Columns
    splits: bool

    @property
    def uid_column(self) -> str | None:
        """The column of the uids that are read, None for none."""
        return self.columns["uid"][0] if "uid" in self.columns else None

    def rows(self) -> Iterator[Row]:
        """Yield the documents in order. Raises ContractError with file and line of one that cannot be read."""
        return self.format.read(self.path, self.columns)

    def digest(self) -> str:
        """Return a sha256 of the file, or of the names and contents of all files in the folder; "" for neither.

        Hidden folders are left out: an import to a folder inside this one writes to such a folder.
        """
        if not self.path.is_dir():
            return file_digest(self.path) if self.path.is_file() else ""
        files = sorted(path.relative_to(self.path) for path in self.path.rglob("*") if path.is_file())
        listing = "".join(f"{name}\n{file_digest(self.path / name)}\n" for name in files
                          if not any(part.startswith(".") for part in name.parts[:-1]))
        return hashlib.sha256(listing.encode(errors="surrogateescape")).hexdigest()


def find_documents(path: Path, named: Mapping[str, str]) -> Documents:
    """Detect the format of a file or folder; named: role -> the column that the user names for it.

    Raises UsageError for a path that is of no format, for columns that the format does not have, and for one that is
    named for two roles.
    """
    _refuse_shared(named)
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UsageError(f"{path} is no file that can be read more than once", hint="name a file")
    if file_kind(path) in VOCABULARIES.keys() - {".xml"}:
        raise UsageError(f"{path} is a vocabulary, not documents with labels",
                         hint=f"xc data import DOCUMENTS DIR --vocabulary {path}")
    if (path / "trn.json.gz").is_file():
        raise UsageError(f"{path} is a data set already", hint=f"xc run --data {path}")
    known = _detect(path, named)
    if not known.named and named:
        raise UsageError(f"{path} is {known.name}, which has no column to name", hint=f"leave out --{min(named)}")
    if known is TABLE and path.exists() and file_kind(path) == ".xml":
        raise UsageError(f"{path} is XML, but not MARCXML",
                         hint=f"save the documents as MARCXML or as a table ({', '.join(KINDS)}); a vocabulary is "
                              "given by --vocabulary FILE")
    missing = next((role for role in ("text", "labels") if role not in named), "")
    if known is TABLE and missing and path.exists() and file_kind(path) in KINDS:    # others are refused later
        raise UsageError(f"{path} is a table, and the column of its {missing} is not named",
                         hint="xc data import FILE DIR --text COLUMN --labels COLUMN")
    columns = {**known.columns, **{role: (name,) for role, name in named.items()}}
    return Documents(path, known, columns, "split" in named or known.splits(path))


def _refuse_shared(named: Mapping[str, str]) -> None:
    """Raise UsageError where a column is named for two roles; a uid may be a text of the row."""
    roles: dict[str, str] = {}
    for role, name in named.items():
        if role != "uid" and (other := roles.setdefault(name.casefold(), role)) != role:
            raise UsageError(f"column {name!r} is named for {other} and for {role}",
                             hint=f"name another: --{role} COLUMN")


def _detect(path: Path, named: Mapping[str, str]) -> DocumentFormat:
    for known in FORMATS:
        if not (known.tabular and named.keys() & {"text", "labels"}) and known.detect(path):
            return known
    if path.is_dir():
        raise UsageError(f"{path} is a folder without documents", hint="known are Annif's full texts (*.txt with *.key "
                         "or *.tsv) and what save_to_disk of Hugging Face's datasets writes; or name a file")
    return TABLE

"""Reading of files of labels to add or to remove, as tables or plain lines."""

from dataclasses import dataclass

from data_contracts.errors import ContractError, UsageError
from tasks.data.sources.columns import Layout
from tasks.data.sources.tabular import read_rows

LONGEST = 1 << 16    # characters of a text
_COLUMNS = {"uid": ("uid",), "text": ("text", "title"), "content": ("content",)}
ADD = Layout(_COLUMNS, required=("uid", "text"), unnamed=("uid", "text", "content"), closed=True)
# Usual names of columns: a row of labels that begins a file with one of them is a header line with unknown names.
HEADER_WORDS = {"id", "uid", "name", "label", "labels", "title", "text", "content", "description"}
REMOVE = Layout(_COLUMNS, required=("uid",), unnamed=("uid",), plain="uid", closed=True)


@dataclass(frozen=True)
class LabelRow:
    """One label of a file; where: "file:line"."""

    where: str
    uid: str
    text: str = ""
    content: str = ""


def read_labels(source: str, *, texts: bool) -> list[LabelRow]:
    """Return the labels of a file, or of stdin where `source` is "-".

    texts: each row has a uid, a text and maybe a content; else a line is a uid, or a table has a column "uid". A
    table without a header line has the columns uid, text, content. Raises ContractError at the first bad row.
    """
    rows = []
    seen: dict[str, str] = {}
    for cells in read_rows(source, ADD if texts else REMOVE):
        row = LabelRow(cells.where, *(cells.text(role) for role in _COLUMNS))
        if not (row.uid or row.text or row.content):
            continue    # a blank line, or a row that was emptied in Excel
        if texts and cells.number == 1 and (named := HEADER_WORDS & {row.uid.lower(), row.text.lower()}):
            raise ContractError(f"{min(named)!r} seems to name a column, and there is no such column", where=row.where,
                                hint="the header line is uid,text; put it above where this is the first label")
        if not row.uid:
            raise ContractError("the row has no uid", where=row.where, hint="give each row one, or leave the row out")
        if texts and not row.text:
            hint = "it is found by its text: give one" if "text" in cells.cells else \
                "separate uid and text by a comma, a semicolon or a tab"
            raise ContractError(f"label {row.uid!r} has no text", where=row.where, hint=hint)
        if len(row.text) + len(row.content) > LONGEST:
            raise ContractError(f"the text of label {row.uid!r} has more than {LONGEST:,} characters", where=row.where,
                                hint="give the beginning of it")
        if row.uid in seen:
            raise ContractError(f"label {row.uid!r} is in {seen[row.uid]} already", where=row.where,
                                hint="keep one of the two")
        seen[row.uid] = row.where
        rows.append(row)
    if not rows:
        raise UsageError(f"there is no label in {source}", hint="one a line: uid,text" if texts else "one uid a line")
    return rows

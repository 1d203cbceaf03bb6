"""Raw data sets, read as shards of the tables in data_contracts.schemas.

`describe` detects the data set in a folder; `units` lists what is read apart, one per raw file; `read_tables` reads
one, or a share of one that `splits`.
Formats, all of them with optional filter pairs, groups and anchor sets in the same folder:

    xc-json    trn, tst, lbl .json.gz (or .json, .jsonl): uid, title, content; in trn, tst target_ind, maybe target_rel
    xc-sparse  trn_X.txt, tst_X.txt, Y.txt (or trn.raw.txt, ...), with trn_X_Y.txt, tst_X_Y.txt or Y.trn.npz, Y.tst.npz
    anchors    <anchor>.raw.txt with <anchor>_{trn,tst,lbl}_X_Y.txt or .npz; the one for tst may be absent
"""

from tasks.data.sources.raw import RawDataSet, describe, hashed, tables, units
from tasks.data.sources.reading import read_tables, splits

__all__ = ["RawDataSet", "describe", "hashed", "read_tables", "splits", "tables", "units"]

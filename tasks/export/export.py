"""Export of a registered version's encoder, with its label vectors and a model card, to a new folder."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

from data_contracts.errors import UsageError
from tasks.core.files import explained
from tasks.core.hidden_folders import new_folder
from tasks.registry.resolve import find, folder_of
from tasks.registry.tags import Version
from tasks.tracking.tracker import Tracker

Target = Literal["sentence-transformers", "onnx", "hub-folder"]
_PACKAGES = {"onnx": ("sentence_transformers", "onnx", "onnxscript")}    # of a target; of others the first
_LARGE_FILES = "".join(f"{name} filter=lfs diff=lfs merge=lfs -text\n" for name in ("*.safetensors", "labels.jsonl"))


class Exported(NamedTuple):
    """An exported version; its label vectors' names; whether its folder needs no code of its own to be loaded."""

    version: str
    vectors: list[str]
    plain: bool


def export_encoder(tracker: Tracker, spec: str | None, out: Path, to: Target) -> Exported:
    """Write the encoder of the version that `find` returns to `out`, which is empty or not there; all of it or nothing.

    Raises UsageError where `out` has files or cannot be made, or a package is missing, DamagedArtifact where the
    version's files are not those that were registered.
    """
    _check(out, to)
    version = find(tracker, spec)
    folder = folder_of(tracker, version)
    with explained("write the encoder", out), new_folder(out) as made:
        made.mkdir()
        vectors, plain = write_files(folder, version, made, to)
        mode = made.stat().st_mode & 0o666
        for file in made.rglob("*"):    # safetensors makes its own for this user alone
            if file.is_file():
                file.chmod(mode)
    return Exported(f"{version.name}/{version.version}", vectors, plain)


def _check(out: Path, to: Target) -> None:
    """Raise UsageError where `out` is taken, or a package that the target needs is missing."""
    if os.path.lexists(out) and (out.is_symlink() or not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is there already", hint="name a new folder, or move that one away")
    if out.resolve() == Path.cwd():    # it would be renamed away under the user's shell
        raise UsageError(f"{out} is the current folder, which cannot be replaced", hint="name a new folder")
    above = next(folder for folder in out.absolute().parents if os.path.lexists(folder))
    if not above.is_dir():
        raise UsageError(f"{above} is not a folder", hint="name another one for the encoder")
    missing = [name for name in _PACKAGES.get(to, ("sentence_transformers",)) if find_spec(name) is None]
    if missing:
        raise UsageError(f"--to {to} needs packages that are not installed: {', '.join(missing)}",
                         hint="pip install 'xcflow[export]'")


def write_files(folder: Path, version: Version, out: Path, to: Target) -> tuple[list[str], bool]:
    """Write the retriever in `folder`, of a registered version, as the files of a target to `out`, an empty folder.

    Returns the names of the label vectors, and whether no code is among the files.
    """
    from tasks.export import encoder_card, label_vectors, sentence_folder
    from xcmodels.nn.encoders import LABEL, QUERY
    from xcmodels.retrieval.retriever import Retriever

    retriever = Retriever.load(folder)
    encoder, tokenizer = retriever.encoder, retriever.tokenizer
    plain = to == "onnx" or sentence_folder.is_plain(encoder)
    if to == "onnx":
        from tasks.export.onnx_graph import write_graph

        portable = sentence_folder.portable_encoder(encoder, tokenizer, retriever.untitled)
        for view in {QUERY, LABEL} & set(encoder.layout.views):
            write_graph(portable, view, out / f"{view}.onnx")
        sentence_folder.write_tokenizers(tokenizer, out)
    else:
        sentence_folder.write_folder(encoder, tokenizer, retriever.untitled, out)
    if to == "hub-folder":
        (out / ".gitattributes").write_text(_LARGE_FILES)
    named = label_vectors.write_labels(retriever, out)
    library = "onnx" if to == "onnx" else "sentence-transformers"
    card = encoder_card.card(retriever, version, named, library, plain)
    (out / "README.md").write_text(card, encoding="utf-8")
    return list(named), plain

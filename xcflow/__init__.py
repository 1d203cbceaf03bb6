"""Extreme classification from Python: train a retriever, or load a registered one, and tag texts.

    import xcflow
    retriever = xcflow.train("tickets")                      # a raw data set, as `xc run --data` takes it
    retriever = xcflow.load("wordnet@champion")              # a version of the registry
    retriever.predict(["a large wild cat"], k=5)             # Labels: id, uid, text, score, confidence

What is named here is the public interface; everything else may change with any version.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasks.local import train
    from tasks.registry.resolve import load
    from xcmodels.retrieval.retriever import Label, Retriever

__all__ = ["Label", "Retriever", "load", "train"]

_HOMES = {"train": "tasks.local", "load": "tasks.registry.resolve", "Label": "xcmodels.retrieval.retriever",
          "Retriever": "xcmodels.retrieval.retriever"}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, since that imports torch."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'xcflow' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__

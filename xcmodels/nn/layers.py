"""The layers of a transformer in two parts: those below, which are not trained, and the top ones.

The states between them are those that the layers below make of a text; while these are not trained, that is done once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


def top_layers(model: nn.Module, count: int, least_below: int = 0) -> list[nn.Module]:
    """Return the `count` top layers of a model; raise ValueError where it has fewer, or too few below them."""
    _, _, layers = _layers(model)
    if count > (most := len(layers) - least_below):
        less = " less one, or encoder.cache_frozen=false" if least_below else ""
        raise ValueError(f"encoder.trained_layers must be at most {most}, the encoder's layers{less}, got {count}")
    return list(layers)[len(layers) - count:]


def states_below(model: nn.Module, top: int, **inputs: Any) -> torch.Tensor:
    """Return the states (n, width, d) that reach the `top` top layers of a model, of which there are more."""
    kept: list[torch.Tensor] = []

    def keep(_: nn.Module, __: tuple[Any, ...], out: Any) -> None:
        kept.append(out[0] if isinstance(out, tuple) else out)

    with _only(model, slice(None, -top)) as layers:
        hook = layers[-1].register_forward_hook(keep)
        try:
            model(**inputs)
        finally:
            hook.remove()
    return kept[0]


@contextmanager
def fed(model: nn.Module, top: int, states: torch.Tensor) -> Iterator[None]:
    """Let a model begin at its `top` top layers, on the states (n, width, d) that reach them."""
    def given(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return ((states, *args[1:]), named) if args else (args, {**named, "hidden_states": states})

    with _only(model, slice(-top, None)) as layers:
        hook = layers[0].register_forward_pre_hook(given, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()


@contextmanager
def _only(model: nn.Module, kept: slice) -> Iterator[nn.ModuleList]:
    """Leave only some of its layers in a model, which have to be some."""
    parent, name, layers = _layers(model)
    setattr(parent, name, layers[kept])
    try:
        yield layers[kept]
    finally:
        setattr(parent, name, layers)


def _layers(model: nn.Module) -> tuple[nn.Module, str, nn.ModuleList]:
    """Return a model's longest list of modules, the module that holds it, and the name that it has there."""
    lists = [(parent, name, child) for parent in model.modules() for name, child in parent.named_children()
             if isinstance(child, nn.ModuleList)]
    return max(lists, key=lambda found: len(found[2]))

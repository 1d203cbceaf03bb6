"""The layers of a transformer in two parts: the frozen ones below, and the top ones, which are trained."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from xcmodels.checks import Unusable


def top_layers(model: nn.Module, count: int, *, frozen: bool = False) -> list[nn.Module]:
    """Return the `count` top layers of a model. Raises Unusable where it has fewer or, if `frozen`, none below them."""
    _, _, layers = _layers(model)
    if count > len(layers):
        raise Unusable(f"encoder.trained_layers must be at most {len(layers)}, the encoder's layers, got {count}")
    if frozen and count == len(layers):
        raise Unusable(f"encoder.trained_layers is {count}, all of the encoder's layers, so none is frozen; "
                       "lower it, or set encoder.cache_frozen=false")
    return list(layers)[len(layers) - count:]


def states_below(model: nn.Module, top: int, **inputs: Any) -> torch.Tensor:
    """Return the states (n, width, d) that the layers below the `top` top ones make of inputs."""
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
def beginning_at(model: nn.Module, top: int, states: torch.Tensor) -> Iterator[None]:
    """Let a model begin at its `top` top layers: they get `states` (n, width, d), whatever the model's inputs are."""
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
    """Reduce a model to some of its layers for a while, in which no other thread may use it."""
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

"""Presets of RAMEN: each of a base's, with graphs."""

from dataclasses import replace

from xcmodels.methods.ramen import GraphConfig, RamenConfig
from xcmodels.presets.ngame import NGAME
from xcmodels.presets.settings import Preset, Settings
from xcmodels.presets.unidec import ANCE


def _over(name: str, base: Preset, graph: GraphConfig) -> Preset:
    def settings() -> Settings:
        made = base.settings()
        return replace(made, method=RamenConfig(made.method, graph))

    return Preset(f"metadata graphs over {name}: {base.about}", settings)


def _all(name: str, presets: dict[str, Preset]) -> dict[str, Preset]:
    return {preset: _over(name, base, GraphConfig(adapt=preset == "paper")) for preset, base in presets.items()}


RAMEN, RAMEN_ANCE = _all("NGAME", NGAME), _all("ANCE", ANCE)

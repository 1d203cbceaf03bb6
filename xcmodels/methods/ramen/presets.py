"""Presets of RAMEN: presets of its base methods, with graphs."""

from dataclasses import replace

from xcmodels.methods.ngame.method import ngame
from xcmodels.methods.ngame.presets import NGAME
from xcmodels.methods.preset_parts import MethodEntry, Preset, Settings
from xcmodels.methods.ramen.config import GraphConfig, RamenConfig
from xcmodels.methods.ramen.method import ramen
from xcmodels.methods.unidec.method import unidec
from xcmodels.methods.unidec.presets import ANCE, UNIDEC


def _over(name: str, base: Preset, graph: GraphConfig) -> Preset:
    def settings() -> Settings:
        settings_of_base = base.settings()
        return replace(settings_of_base, method=RamenConfig(settings_of_base.method, graph))

    return Preset(f"metadata graphs over {name}: {base.about}", settings)


def _cpus(name: str, presets: dict[str, Preset]) -> dict[str, Preset]:
    return {preset: _over(name, presets[preset], GraphConfig())
            for preset in ("cpu", "cpu-learned", "cpu-minilm", "minilm")}


def _paper() -> Settings:
    """Table 10's row: batches of 1,024, 300 epochs at 2e-4 over NGAME, M2 with 2 positives and 12 negatives."""
    ngames = NGAME["lf-amazontitles-131k"].settings()
    base = ngames.method
    base = replace(base, m1=replace(base.m1, batch_size=1024, lr=2e-4), m2=replace(base.m2, positives=2, negatives=12))
    return replace(ngames, method=RamenConfig(base, GraphConfig(adapt=True)))


RAMEN = {**_cpus("NGAME", NGAME), "lf-wikiseealsotitles-320k": Preset(
    "Table 10's row, over NGAME with strengths that adapt: msmarco-distilbert from the hub; GPUs", _paper)}
RAMEN_ANCE = _cpus("ANCE", ANCE)
RAMEN_UNIDEC = _cpus("UniDEC", UNIDEC)

METHODS = {"ramen": MethodEntry(ramen(ngame), RAMEN), "ramen-ance": MethodEntry(ramen(unidec), RAMEN_ANCE),
           "ramen-unidec": MethodEntry(ramen(unidec), RAMEN_UNIDEC)}

"""Presets of SiameseXML and SiameseXML++."""

from dataclasses import replace

from xcmodels.methods.preset_parts import (
    BAG,
    BOOSTED_WEIGHT_2,
    MIN_STEPS_PER_EPOCH,
    MethodEntry,
    Preset,
    Settings,
    fine_tuned,
    learned,
)
from xcmodels.methods.siamesexml.config import MIXED, LikelihoodConfig, SiamesexmlConfig
from xcmodels.methods.siamesexml.method import siamesexml
from xcmodels.retrieval.serving_config import FUSED


def _cpu(*, joint: bool) -> Settings:
    """Classifiers start at their labels' own texts: where half of the labels have one query, all labels that share it
    alone would start at one classifier, and classifiers alone lose 5.0 of P@1 on WordNet (docs/siamesexml.md).
    """
    return Settings(BAG, SiamesexmlConfig(
        joint=joint, token_lr=5e-4 if joint else 0.0, power=1.0, scored_centroid=0.0,
        scored_query="intermediate", correlation=False, shortlist=100, mined=20, serve=FUSED, fusion=BOOSTED_WEIGHT_2,
        siamese=LikelihoodConfig(epochs=12, batch_size=1024, lr=5e-3, table_lr=2e-3, warmup=50, c=0.9, d=1.5,
                                 negatives=1, least_steps=MIN_STEPS_PER_EPOCH),
        extreme=LikelihoodConfig(epochs=6, batch_size=1024, lr=1e-3, table_lr=1e-3, warmup=50, c=0.75, d=3.0,
                                 negatives=5, least_steps=MIN_STEPS_PER_EPOCH)))


def _paper(*, joint: bool) -> Settings:
    """Section 4 and the authors' release: one bag of embeddings for both sides, a vocabulary learned from the data."""
    base = learned(_cpu(joint=joint))
    method = base.method
    return Settings(base.prepare, replace(
        method, head="gelu", encoder=replace(method.encoder, dim=300, tied=True, places=0, sums=1), shortlist=500,
        mined=100, power=0.45, correlation=True, scored_centroid=1.0, scored_query="final",
        token_lr=2e-4 if joint else 0.0, serve=MIXED,
        siamese=replace(method.siamese, epochs=50, batch_size=4095, lr=0.01, table_lr=0.01, negatives=1, least_steps=0),
        extreme=replace(method.extreme, epochs=20, batch_size=255, lr=2e-4, table_lr=2e-4, negatives=5,
                        least_steps=0)))


def _presets(about: str, *, joint: bool) -> dict[str, Preset]:
    return {
        "cpu": Preset(f"{about}; bag of tokens started from MiniLM's, two cores, minutes", lambda: _cpu(joint=joint)),
        "cpu-learned": Preset(f"{about}; bag of tokens from scratch on a vocabulary learned from the data",
                              lambda: learned(_cpu(joint=joint), "siamese.table_lr")),
        "cpu-minilm": Preset(f"{about}; cpu with MiniLM fine-tuned beside the bag, two cores",
                             lambda: fine_tuned(_cpu(joint=joint), "siamese", *(["extreme"] if joint else []))),
        "paper": Preset(f"{about}; the paper's settings, started at random instead of from fastText",
                        lambda: _paper(joint=joint)),
    }


SIAMESEXML = _presets("Siamese encoder on batches of labels, then classifiers", joint=False)
SIAMESEXML_PLUS = _presets("SiameseXML whose last module trains the encoder's backbone, too", joint=True)

METHODS = {"siamesexml": MethodEntry(siamesexml, SIAMESEXML), "siamesexml++": MethodEntry(siamesexml, SIAMESEXML_PLUS)}

"""The methods, by name, and the baselines that are settings of their parts. Methods never import each other.

A configuration makes a method: METHODS["ngame"](config).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from xcmodels.method import Method
from xcmodels.methods.astra import Astra
from xcmodels.methods.ngame import Ngame
from xcmodels.methods.ramen import Base, Ramen, RamenConfig
from xcmodels.methods.siamesexml import Siamesexml
from xcmodels.methods.unidec import Unidec


def _ramen(base: Callable[[Any], Base]) -> Callable[[RamenConfig], Ramen]:
    return lambda config: Ramen(config, base(replace(config.base, seed=config.seed)))


METHODS: Mapping[str, Callable[[Any], Method]] = {
    "ngame": Ngame, "ramen": _ramen(Ngame), "ramen-ance": _ramen(Unidec), "ramen-unidec": _ramen(Unidec),
    **dict.fromkeys(("astra", "renee"), Astra),
    **{name: partial(Unidec, name=name) for name in ("unidec", "depsl", "dpr", "dpr-clustered", "ance", "dexml")},
    **dict.fromkeys(("siamesexml", "siamesexml++"), Siamesexml)}

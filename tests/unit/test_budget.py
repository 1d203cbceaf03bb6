"""What `xc plan --labels` tells of time and disk space, from rates that are given."""

import pytest

from xcmodels.methods.presets import resolve
from xcmodels.methods.registry import METHODS
from xcmodels.resources import Size, budget, with_width

WIDTH = 64
RATE = {"train": 1e-4, "process": 5e8, "encode": 1e-6, "cluster": 1e-7, "search exact": 1e-9, "search grouped": 1e-9,
        "rescore": 3e-5, "find group": 1e-8, "build": 1e-6}


def method_of(name):
    return METHODS[name].make(with_width(resolve(name, "cpu", {}).method, WIDTH))


def rates_of(name):
    """Rates of a method on both devices, the same at all widths."""
    return {device: {name: {"64": RATE, "384": RATE}} for device in ("cpu", "cuda")}


@pytest.mark.parametrize("more", [{"gpus": 8}, {"gpus": 8, "machines": 2}])
def test_an_epoch_takes_as_long_on_several_gpus(more):
    """Every process computes the steps of a bag of tokens in full."""
    one, several = (budget(method_of("astra"), Size(10**6, 10**6, **gpus), rates_of("astra"))
                    for gpus in ({"gpus": 1}, more))
    assert several.epoch == one.epoch == pytest.approx(100.0)

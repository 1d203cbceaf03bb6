"""What the containers of `xc service compose` can use: a GPU."""

import json
from dataclasses import replace

import pytest

from flows.services.compose import compose
from flows.services.service_manager import Setup


@pytest.fixture
def setup(tmp_path):
    return Setup(tmp_path, "1000:1000")


def made(setup):
    return json.loads(compose(setup, "xcflow", secrets=False))["services"]


def test_the_worker_of_the_pool_gpu_alone_has_the_gpus(setup):
    services = made(replace(setup, gpu=True))
    assert [name for name, service in services.items() if "deploy" in service] == ["worker-gpu"]
    (device,) = services["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}

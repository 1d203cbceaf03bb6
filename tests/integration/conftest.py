"""A home with one version, and a server of it in a process of its own, shared by the tests of a file."""

from collections.abc import Iterator

import pytest

from tests.support.running_server import Running, ServedModels, running


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> ServedModels:
    models = ServedModels(tmp_path_factory.mktemp("served") / "home")
    models.add()
    return models


@pytest.fixture(scope="module")
def server(models: ServedModels) -> Iterator[Running]:
    with running(models.home) as server:
        yield server

"""A home with one version, and a server of it in a process of its own, shared by the tests of a file."""

from collections.abc import Iterator

import pytest

from tests.support.running_server import Running, World, running


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("served") / "home")
    world.add()
    return world


@pytest.fixture(scope="module")
def server(world: World) -> Iterator[Running]:
    with running(world.home) as server:
        yield server

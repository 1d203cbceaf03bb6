"""`xc rollback`: the champion before is checked before it is that again, and another may become it meanwhile."""

import pytest

from data_contracts.errors import UsageError
from flows.cli.commands.registry import rollback
from tasks.registry import resolve
from tasks.registry.promotion import promote
from tests.support import tiny


@pytest.fixture
def models(tmp_path, monkeypatch):
    monkeypatch.delenv("XC_MLFLOW", raising=False)
    return tiny.RegisteredModels(tmp_path / "home")


def test_a_rollback_is_of_the_champion_that_was_looked_at(models, monkeypatch):
    for seed in range(3):
        models.enter(seed, 60.0 + seed)
    better = models.register(3, 66.0).version
    usable = resolve.resolve_usable

    def meanwhile(tracker, spec):
        promote(tracker, "xc", better, "a retraining", force=True)
        return usable(tracker, spec)

    with monkeypatch.context() as patch:
        patch.setattr(resolve, "resolve_usable", meanwhile)
        with pytest.raises(UsageError, match="xc has another champion since it was looked at\\nhint: run the same"):
            rollback("xc", reason="clicks fell", home=models.store.home)
    assert models.aliases()["champion"] == better
    rollback("xc", reason="clicks fell", home=models.store.home)
    assert models.aliases()["champion"] == "3"

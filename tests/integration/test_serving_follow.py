"""Following an alias: a new version takes over without a failed request, a bad one never, and memory stays bounded."""

import re
import threading
import time

import psutil
import pytest

from data_contracts.errors import DamagedArtifact, UsageError
from serving.model_watcher import AliasFollower, RegisteredModel
from tasks.tracking.tracker import Tracker
from tests.support.running_server import DIGEST, ServedModels, running, within


@pytest.fixture
def models(tmp_path):
    return ServedModels(tmp_path / "home")


def follower_of(models, spec="xc@champion"):
    registered = RegisteredModel(Tracker(models.home), spec)
    return AliasFollower(registered.look, registered.load)


def test_a_version_says_what_it_is(models):
    models.add()
    follower = follower_of(models, None)
    follower.first()
    served = follower.current
    assert served.named() == {"name": "xc", "version": "1", "digest": models.digest(), "data": DIGEST}
    assert served.recall == {"classifier": 0.995}


def test_a_step_takes_what_the_alias_names_now(models):
    models.add()
    follower = follower_of(models)
    follower.step()
    first = follower.current
    follower.step()
    assert follower.current is first    # looked at, not loaded again
    models.add(seed=1, p1=70.0)
    follower.step()
    assert (follower.current.version, follower.current.digest) == ("2", models.digest(1))
    models.promote("1")
    follower.step()
    assert follower.current.version == "1" and follower.fault == ""


def test_a_name_alone_stays_the_model_that_it_was(models):
    models.add()
    follower = follower_of(models, None)
    follower.step()
    with models.tracker.required() as client:
        client.create_registered_model("another")
    follower.step()
    assert follower.current.name == "xc" and follower.fault == ""


def test_a_damaged_version_changes_nothing(models, caplog):
    models.add()
    follower = follower_of(models)
    follower.step()
    models.add(seed=1, p1=70.0)
    models.damage(1)
    for _ in range(3):
        follower.step()
    assert follower.current.version == "1" and "term.encoder.npy" in follower.fault
    told = [record for record in caplog.records if record.name == "serving" and "term.encoder" in record.message]
    assert len(told) == 1    # once, not each second
    models.add(seed=2, p1=80.0)
    follower.step()
    assert follower.current.version == "3" and follower.fault == ""


def test_a_version_that_cannot_predict_is_not_taken(models):
    models.add()
    registered = RegisteredModel(Tracker(models.home), "xc@champion")
    follower = AliasFollower(registered.look, registered.load)
    follower.step()
    models.add(seed=1, p1=70.0)

    def broken(version):
        raise ValueError("query 0 is not finite; look for a diverged model")

    follower._load = broken
    follower.step()
    assert follower.current.version == "1" and "not finite" in follower.fault


@pytest.mark.parametrize("spec", [None, "xc", "xc@champion"])
def test_an_alias_or_a_database_that_is_gone_changes_nothing(models, spec):
    models.add()
    follower = follower_of(models, spec)
    follower.step()
    with models.tracker.required() as client:
        client.delete_registered_model_alias("xc", "champion")
    follower.step()
    assert follower.current.version == "1" and "no alias 'champion'" in follower.fault
    models.promote("1")
    follower.step()
    assert follower.fault == ""
    (models.home / "mlflow.db").rename(models.home / "away")
    follower.step()
    assert follower.current.version == "1" and "no model is registered" in follower.fault
    assert not (models.home / "mlflow.db").exists()    # looking makes nothing
    (models.home / "away").rename(models.home / "mlflow.db")
    follower.step()
    assert follower.fault == ""


def test_a_version_that_the_gates_refused_does_not_answer_for_the_model(models):
    models.add()
    models.add(seed=1, p1=10.0)
    follower = follower_of(models, "xc")
    follower.step()
    with models.tracker.required() as client:
        client.delete_model_version("xc", "1")    # and with it the alias
    follower.step()
    assert follower.current.version == "1" and "no alias 'champion'" in follower.fault
    for spec in ("xc", "models:/xc", None):
        with pytest.raises(UsageError, match="xc has no alias 'champion'") as caught:
            follower_of(models, spec).first()
    assert "xc promote xc/VERSION" in caught.value.hint
    told = follower_of(models, "xc/2")
    told.first()
    assert told.current.version == "2"


@pytest.mark.parametrize("spec", ["xc@champion", "xc", "xc/1"])
def test_a_look_reads_one_version_however_it_is_named(models, monkeypatch, spec):
    models.add()

    def read_all(*_):
        raise AssertionError("the whole registry is read, each second")

    for name in ("model_names", "versions_of"):
        monkeypatch.setattr(f"tasks.registry.resolve.{name}", read_all)
    assert str(RegisteredModel(Tracker(models.home), spec).look().version) == "1"


@pytest.mark.parametrize("number", ["2", "01", "+1", "x", ""])
def test_a_number_that_no_version_has_is_refused(models, number):
    models.add()
    with pytest.raises(UsageError, match=f"xc has no version '{re.escape(number)}'"):
        follower_of(models, f"xc/{number}").first()


def test_the_first_version_has_to_be_right(models):
    with pytest.raises(UsageError, match="no model is registered"):
        follower_of(models).first()
    models.add()
    with pytest.raises(UsageError, match="did you mean 'champion'"):
        follower_of(models, "xc@champoin").first()
    models.damage(0)
    with pytest.raises(DamagedArtifact):
        follower_of(models).first()


def test_the_alias_moves_under_load_without_a_failed_request(models):
    models.add()
    models.add(seed=1, p1=10.0)
    with running(models.home) as server:
        stop, answers = threading.Event(), []

        def ask():
            while not stop.is_set():
                began = time.monotonic()
                reply = server.ask("/predict", {"texts": ["a wolf", "an oak", "the sea"], "k": 3})
                model = reply.json()["model"] if reply.status == 200 else {}
                answers.append((began, time.monotonic(), reply.status, model.get("version"), model.get("digest"),
                                reply.body))
                stop.wait(max(0, 0.1 - (time.monotonic() - began)))

        threads = [threading.Thread(target=ask) for _ in range(5)]    # 50 a second together
        for thread in threads:
            thread.start()
        time.sleep(1)
        models.promote("2")
        followed = within(60, lambda: "2" in [version for _, _, _, version, *_ in answers])
        time.sleep(1)
        stop.set()
        for thread in threads:
            thread.join()
        assert {status for _, _, status, *_ in answers} == {200}
        assert followed
        assert {(version, digest) for *_, version, digest, _ in answers} == {
            ("1", models.digest(0)), ("2", models.digest(1))}
        # what a version answers is its own: the same texts, one answer a version
        labels = {(version, body) for *_, version, _, body in answers}
        assert len(labels) == 2
        first = min(ended for _, ended, _, version, *_ in answers if version == "2")
        assert max(began for began, _, _, version, *_ in answers if version == "1") < first


def test_memory_is_bounded_while_the_alias_flips(models):
    models.add()
    models.add(seed=1, p1=10.0)
    with running(models.home) as server:
        process, used, seen = psutil.Process(server.process.pid), [], set()
        for turn in range(80):
            models.point(str(turn // 10 % 2 + 1))    # for about as long as between two lookups
            reply = server.ask("/predict", {"texts": ["a wolf"]})
            assert reply.status == 200
            seen.add(reply.json()["model"]["version"])
            used.append(process.memory_info().rss / 1e6)
            time.sleep(0.1)
        assert seen == {"1", "2"}
        assert max(used[-20:]) < max(used[:30]) + 60
        assert server.ask("/readyz").body == b"ok"


def test_a_bad_version_shows_as_degraded_and_is_cured(models):
    models.add()
    with running(models.home) as server:
        version = models.add(seed=1, p1=50.0)    # no champion before it is damaged: the server would have it by then
        models.damage(1)
        models.point(version)
        assert within(60, lambda: server.ask("/readyz").body == b"degraded")
        assert server.ask("/readyz").status == 200 and server.fine()
        assert "term.encoder.npy" in server.ask("/model").json()["fault"]
        assert b"xc_degraded 1.0" in server.ask("/metrics").body
        models.promote("1")
        assert within(60, lambda: server.ask("/readyz").body == b"ok")
        assert server.ask("/model").json()["fault"] == ""

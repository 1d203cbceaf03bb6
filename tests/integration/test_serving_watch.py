"""Files of a version that change while it answers: noticed, refused, told, cured; and scores that are none."""

import asyncio
import errno
import json
import os
import shutil

import numpy as np
import pytest

from data_contracts.errors import DamagedArtifact
from serving import file_watcher, model_watcher
from serving.answers import ModelService, Question, answer
from serving.file_watcher import Watch
from serving.http.guard import Problem
from serving.model_watcher import AliasFollower, RegisteredModel
from serving.prometheus import ServerMetrics
from serving.schemas import PredictRequest
from tasks.tracking.tracker import Tracker
from tests.support.running_server import ServedModels, problem, running, within


@pytest.fixture
def models(tmp_path):
    models = ServedModels(tmp_path / "home")
    models.add()
    return models


@pytest.fixture
def follower(models):
    registered = RegisteredModel(Tracker(models.home), "xc@champion")
    follower = AliasFollower(registered.look, registered.load)
    follower.step()
    return follower


def vectors(models):
    """Return the file of the vectors that scores are made of, to be written to."""
    path = models.home / "objects" / models.digest() / "term.encoder.npy"
    path.chmod(0o600)
    return path


def poison(path):
    """Overwrite an array's numbers in place with some that are none, as a disk or a person may."""
    array = np.load(path, mmap_mode="r+")
    array[:] = np.nan
    array.flush()


def ask(follower):
    """Return a served answer of a text by the version that answers."""
    service = ModelService(follower, ServerMetrics(frozenset()))
    return asyncio.run(service.predict(PredictRequest(texts=["a wolf"], k=3)))


def test_a_change_is_told_apart_from_another_name_and_from_a_cure(models):
    path = vectors(models)
    watch, right = Watch(path.parent), path.read_bytes()
    os.link(path, models.home / "another name")
    assert watch.written() == ""
    os.utime(path)
    assert watch.written() == str(path)
    watch.verify()
    assert (watch.written(), watch.damage) == ("", "")
    for wrong in (right[:-1], right + b"x", right[:-1] + bytes([right[-1] ^ 1])):
        path.write_bytes(wrong)
        assert watch.written() == str(path)
        watch.verify()
        assert watch.damage.startswith(str(path)) and watch.written() == str(path)
        path.write_bytes(right)
        watch.verify()
        assert (watch.written(), watch.damage) == ("", "")
    path.unlink()    # what is mapped is still there
    watch.verify()
    assert (watch.written(), watch.damage) == ("", "")


def test_a_file_that_rots_without_a_trace_is_found_where_it_is_looked_for(models):
    path = vectors(models)
    before = path.stat()
    watch = Watch(path.parent)
    watch._right["term.encoder.npy"] = watch._hashed["term.encoder.npy"] = before
    poison(path)
    watch._right["term.encoder.npy"] = watch._hashed["term.encoder.npy"] = path.stat()
    watch.verify()
    assert watch.damage == ""
    watch.verify(every=True)
    assert watch.damage.startswith(str(path))


def test_no_file_stays_open_without_its_watch(models):
    watch = Watch(vectors(models).parent)
    files = list(watch._files.values())
    assert len(files) > 10 and all(os.fstat(file) for file in files)
    del watch
    for file in files:
        with pytest.raises(OSError):
            os.fstat(file)


@pytest.mark.parametrize("damage", [poison, lambda path: os.truncate(path, 200), lambda path: os.truncate(path, 0)])
def test_a_version_whose_files_change_is_refused_until_they_are_right_again(models, follower, caplog, damage):
    path = vectors(models)
    right, first = path.read_bytes(), ask(follower)
    damage(path)
    follower.current.watch._looked = 0.0    # as if the answer were of a while ago
    with pytest.raises(DamagedArtifact, match="was written to"):    # before anybody looked
        answer([Question(follower.current, "a wolf", 3, 0.0, False)])
    for _ in range(3):
        with pytest.raises(Problem) as told:
            ask(follower)
        assert (told.value.status, told.value.code) == (500, "version")
        follower.step()
        assert "term.encoder.npy was changed" in follower.fault
    assert len([each for each in caplog.records if "term.encoder.npy was changed" in each.message]) == 1
    path.write_bytes(right)
    follower.step()
    assert follower.fault == "" and ask(follower) == first


def test_uids_can_be_looked_up_before_a_request_would_wait_for_it(follower):
    assert "_hashed" in vars(follower.current.retriever.select.index)


def test_a_file_that_cannot_be_read_for_a_moment_is_verified_again(models, follower, monkeypatch):
    first = ask(follower)

    def fail(file):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(file_watcher, "_sha256", fail)
        os.utime(vectors(models))
        follower.step()
        assert "Input/output error" in follower.fault
    follower.step()
    assert follower.fault == "" and ask(follower) == first


def test_another_copy_takes_over_from_a_damaged_one(models, follower, monkeypatch):
    monkeypatch.setattr(model_watcher, "RETRY_SECONDS", 0.0)
    path, first, before = vectors(models), ask(follower), follower.current
    shutil.copy(path, models.home / "right")
    poison(path)
    follower.step()
    assert follower.fault
    os.replace(models.home / "right", path)    # another file of this name
    follower.step()
    assert follower.fault == "" and follower.current is not before and ask(follower) == first


def test_a_file_written_to_in_the_middle_of_an_answer_spoils_it(models, follower, monkeypatch):
    predict = follower.current.retriever.predict_among

    def meanwhile(*given):
        os.utime(vectors(models))
        return predict(*given)

    monkeypatch.setattr(follower.current.retriever, "predict_among", meanwhile)
    with pytest.raises(DamagedArtifact, match="was written to"):
        answer([Question(follower.current, "a wolf", 3, 0.0, False)])


@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize("explain", [False, True])
def test_a_score_that_is_not_finite_never_leaves(follower, caplog, monkeypatch, number, explain):
    """Where the files are right, the version itself is at fault, and stays so."""
    combine = follower.current.retriever.scorer
    monkeypatch.setattr(type(combine), "__call__", lambda self, queries, found, tokens: np.where(
        found == found.max(), number, 1.0).astype(np.float32))
    service = ModelService(follower, ServerMetrics(frozenset()))
    for _ in range(2):
        with pytest.raises(Problem) as told:
            asyncio.run(service.predict(PredictRequest(texts=["a wolf"], k=1, explain=explain)))
        assert (told.value.status, told.value.code) == (500, "version")
        follower.step()
        assert follower.fault == ("xc version 1 failed at a question: a score is not finite; look for a diverged "
                                  "model or a damaged file")
    assert len([each for each in caplog.records if "failed at a question" in each.message]) == 1


def test_a_version_whose_scores_are_not_finite_is_not_taken(models, follower, monkeypatch):
    first = follower.current
    models.add(seed=1, p1=70.0)
    monkeypatch.setattr(type(first.retriever.scorer), "__call__", lambda self, queries, found, tokens: np.full(
        found.shape, np.nan, np.float32))
    follower.step()
    assert follower.current is first and "a score is not finite" in follower.fault


def test_a_running_server_refuses_changed_files_lives_on_and_answers_again(models):
    with running(models.home) as server:
        path = vectors(models)
        right, first = path.read_bytes(), server.labels("a wolf", k=3)
        for damage in (poison, lambda path: os.truncate(path, 128)):
            damage(path)
            reply = server.ask("/predict", {"texts": ["a wolf"], "k": 3})
            problem(reply, 500, "version")
            assert b"null" not in reply.body
            assert within(30, lambda: "term.encoder.npy was changed" in server.ask("/model").json()["fault"])
            problem(server.ask("/feedback", {"text": "a wolf", "accepted": ["tiny:0"]}), 500, "version")
            documents = [{"text": "a wolf", "subjects": [{"uri": "tiny:0"}]}]
            problem(server.ask("/v1/projects/xc/learn", documents), 500, "version")
            reply = server.ask("/readyz")
            assert (reply.status, reply.body) == (503, b"degraded")
            assert b"xc_degraded 1.0" in server.ask("/metrics").body
            assert server.ask("/healthz").status == 200
            path.write_bytes(right)
            assert within(30, lambda: server.ask("/readyz").body == b"ok")
            assert json.dumps(server.labels("a wolf", k=3)) == json.dumps(first)

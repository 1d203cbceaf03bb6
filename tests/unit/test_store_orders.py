"""Every order of calls, against a model of the store."""

import logging
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from data_contracts.errors import DamagedArtifact
from tasks.core import manifest
from tasks.core.store import Artifact, Store, digest_of
from tests.support.faults import one, overwrite, put, stranded


class StoreMachine(RuleBasedStateMachine):
    """Store against a model: which content each step key names, which objects exist, and which are damaged."""

    keys, contents = st.integers(0, 2), st.integers(0, 1)
    names = st.sampled_from(["champion", "previous"])

    @initialize()
    def start(self):
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
        self.store = Store(self.folder / "home")
        self.digests, self.named, self.whole, self.damaged, self.refs = {}, {}, set(), set(), {}

    def teardown(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def drop(self, made):
        self.whole.discard(made)
        self.damaged.discard(made)

    @rule(key=keys, content=contents)
    def publish(self, key, content):
        artifact = self.store.publish(digest_of(key), "step", {}, one(bytes([key, content])))
        made, winner = (key, content), (key, self.named.get(key))
        self.drop(made)
        self.whole.add(made)
        if winner not in self.whole:
            self.drop(winner)
            self.named[key] = content
            self.digests[made] = artifact.digest
        if made not in self.digests:
            self.digests[made] = next(iter({p.name for p in self.objects()} - set(self.digests.values())))
        assert artifact.digest == self.digests[key, self.named[key]]
        assert (self.store.open(artifact) / "a.bin").read_bytes() == bytes([key, self.named[key]])

    @rule(key=keys)
    def find(self, key):
        made = (key, self.named.get(key))
        artifact = self.store.find(digest_of(key))
        assert artifact == (Artifact.of(self.digests[made]) if made in self.whole else None)
        if artifact is None:
            self.drop(made)

    @precondition(lambda self: self.whole)
    @rule(data=st.data(), how=st.sampled_from(["flip", "truncate", "extra", "unlink"]))
    def damage(self, data, how):
        made = data.draw(st.sampled_from(sorted(self.whole)))
        path = self.store.home / "objects" / self.digests[made] / "a.bin"
        if how == "flip":
            before = path.stat().st_mtime_ns
            overwrite(path, 0, bytes([path.read_bytes()[0] ^ 64]))
            os.utime(path, ns=(before + 1, before + 1))  # the clock of the file system may not have ticked
        elif how == "truncate":
            os.truncate(path, 1)
        elif how == "extra":
            put(path.with_name("b.bin"), b"")
        else:
            path.unlink()
        self.whole.remove(made)
        self.damaged.add(made)

    @rule(name=names, data=st.data())
    @precondition(lambda self: self.whole)
    def set_ref(self, name, data):
        self.refs[name] = data.draw(st.sampled_from(sorted(self.whole)))
        self.store.set_ref("models", name, {"digest": self.digests[self.refs[name]]})

    @rule(keep=st.booleans())
    def collect(self, keep):
        live = {*self.named.items(), *self.refs.values(), *(self.whole if keep else ())}
        gone = (self.whole | self.damaged) - live
        removed = self.store.collect([self.digests[made] for made in self.whole] if keep else [])
        assert removed == sorted(self.digests[made] for made in gone)
        for made in gone:
            self.drop(made)

    @rule()
    def restart(self):
        manifest.verify.cache_clear()
        self.store = Store(self.store.home)

    def objects(self):
        return list((self.store.home / "objects").iterdir())

    @invariant()
    def whole_objects_are_readable_and_damaged_ones_refused(self):
        if not hasattr(self, "store"):
            return
        assert {path.name for path in self.objects()} == {self.digests[made] for made in self.whole | self.damaged}
        assert stranded(self.store.home) == []
        for made in self.whole:
            path = self.store.open(Artifact.of(self.digests[made])) / "a.bin"
            assert path.read_bytes() == bytes(made)
        for made in self.damaged:
            with pytest.raises(DamagedArtifact):
                self.store.open(Artifact.of(self.digests[made]))
        for name, made in self.refs.items():
            assert self.store.get_ref("models", name) == {"digest": self.digests[made]}


TestEveryOrder = StoreMachine.TestCase
TestEveryOrder.settings = settings(
    max_examples=30, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
logging.getLogger("hypothesis").setLevel(logging.ERROR)

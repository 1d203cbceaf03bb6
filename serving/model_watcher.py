"""Follow a model alias: every second, look up the version it names and load a new one.

A request is answered by the retriever that was current when it came in, so no answer mixes two versions. A version that
cannot be loaded changes nothing: the one before it stays, and `fault` says why. A version whose files are changed while
it answers is refused until they are right again or another copy of it is loaded.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from data_contracts.errors import DamagedArtifact, ProjectError
from serving.file_watcher import Watch
from tasks.core.files import hold
from tasks.core.manifest import verify
from tasks.registry.resolve import find, folder_of, model_name, parts_of
from tasks.registry.tags import CHAMPION, DATA, DIGEST, EXAMPLES, METRICS, Version
from tasks.tracking.tracker import Tracker
from xcmodels.retrieval.retriever import Retriever

POLL_SECONDS = 1.0      # seconds between two lookups of the alias
RETRY_SECONDS = 30.0     # seconds until a version that could not be loaded is tried again
TRIAL_TEXT = "a text that is asked before anybody else asks"    # to test a version before it answers requests
_log = logging.getLogger("serving")


@dataclass(frozen=True)
class Served:
    """A loaded version. data: digest of its training data. recall: index -> recall against exact search, 0 to 1.

    registered: when it was, in seconds since 1970.
    """

    name: str
    version: str
    digest: str
    data: str
    retriever: Retriever = field(repr=False)
    watch: Watch = field(repr=False)
    examples: tuple[str, ...] = ()
    recall: Mapping[str, float] = field(default_factory=dict)
    registered: float = 0.0

    @cached_property
    def trained_on_contents(self) -> bool:
        """Whether most of the training texts that it keeps have a content, beside a title or without one."""
        side = self.retriever.examples.side
        return bool(2 * (side.ragged.lengths > side.titles).sum() > len(side.titles))

    @property
    def identity(self) -> tuple[str, str]:
        """The version's number, and the digest of its files."""
        return self.version, self.digest

    def named(self) -> dict[str, str]:
        """Return the fields that name the version in an answer."""
        return {"name": self.name, "version": self.version, "digest": self.digest, "data": self.data}


class RegisteredModel:
    """A model in the registry, named as for `find`; where no name is given, the first lookup fixes it.

    A name alone means the champion: without one the newest version may be one that the gates refused.
    """

    def __init__(self, tracker: Tracker, spec: str | None) -> None:
        self.tracker, self.spec = tracker, spec

    def look(self) -> Version:
        """Return the version that the name or alias stands for now."""
        spec = self.spec or model_name(self.tracker)
        version = find(self.tracker, spec if parts_of(spec)[1] else f"{spec}@{CHAMPION}")
        self.spec = self.spec or version.name
        return version

    def load(self, version: Version) -> Served:
        """Open and verify a version, and tag one text; `xc gc` leaves its files alone while it is open."""
        watch = Watch(folder_of(self.tracker, version))
        folder = folder_of(self.tracker, version)    # verifies the files, and only after the watch has opened them
        retriever = Retriever.load(folder)
        hold(folder, retriever)
        retriever.predict([TRIAL_TEXT], 1)
        # hashes all uids, of labels and concepts, a second a million: here, not in the event loop, where all would wait
        retriever.ids([])
        if (branches := retriever.select.branches) is not None and len(branches.uids):
            retriever.select(None, [{"under": branches.uids[0]}])
        metrics = json.loads(version.tags.get(METRICS, "{}"))
        recall = {key.split("/")[1]: value / 100 for key, value in metrics.items() if key.startswith("index/")}
        return Served(version.name, str(version.version), version.tags[DIGEST], version.tags.get(DATA, ""),
                      retriever, watch, tuple(json.loads(version.tags.get(EXAMPLES, "[]"))), recall,
                      version.creation_timestamp / 1000)


class AliasFollower:
    """Keeps the version that an alias names loaded, in a thread of its own.

    look: returns the version that is named now. load: opens it and tries it on a text.
    """

    def __init__(self, look: Callable[[], Version], load: Callable[[Any], Served]) -> None:
        self._look, self._load = look, load
        self.current: Served | None = None
        self._fault = ""                                   # why the alias cannot be followed
        self._failures: dict[tuple[str, str], str] = {}    # identity of a version -> how it failed at a question
        self._verify_all = False                           # whether to verify every file of `current`
        # The identity of a version that could not be loaded, and when it may be tried again.
        self._failed_load: tuple[tuple[str, str], float] | None = None
        self._stop, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._follow, name="follow", daemon=True)

    def start(self) -> None:
        """Follow the alias until `stop` is called."""
        self._thread.start()

    def stop(self) -> None:
        """Stop following, and wait for the thread to end."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def fault(self) -> str:
        """Why the version that answers may be wrong or outdated, "" where nothing is known against it."""
        if self.current is None:
            return self._fault
        return self.current.watch.damage or self._fault or self._failures.get(self.current.identity, "")

    def report_failure(self, served: Served, error: Exception) -> None:
        """Record that a version failed at a question, and have its files verified at once."""
        if not isinstance(error, DamagedArtifact) and served.identity not in self._failures:
            self._failures[served.identity] = f"{served.name} version {served.version} failed at a question: {error}"
            _log.warning("%s version %s failed at a question", served.name, served.version, exc_info=error)
            self._verify_all = True
        self._wake.set()

    def first(self) -> None:
        """Load the version that the alias names; raise what prevents it."""
        self.current = self._load(self._look())

    def step(self) -> None:
        """Look the alias up once, and load a new or damaged version; a failure sets `fault` and nothing else."""
        identity = None
        try:
            sound = self._check()
            version = self._look()
            identity = (str(version.version), version.tags[DIGEST])
            if not sound or self.current is None or self.current.identity != identity:
                if self._failed_load and self._failed_load[0] == identity and time.monotonic() < self._failed_load[1]:
                    return
                self.current = self._load(version)
                _log.warning("%s version %s answers", self.current.name, self.current.version)
            self._fault, self._failed_load = "", None
        except Exception as error:    # the version that answers goes on, whatever it is
            reason = error.what if isinstance(error, ProjectError) else f"{type(error).__name__}: {error}"
            if reason != self._fault:
                answers = self.current is not None and not self.current.watch.damage
                _log.warning("%s; %s", reason, "the version before it answers on" if answers else "nothing answers")
            self._fault = reason
            self._failed_load = (identity, time.monotonic() + RETRY_SECONDS) if identity else None

    def _check(self) -> bool:
        """Return whether the files of `current` are right; those that seem to have changed are hashed."""
        if (served := self.current) is None:
            return True
        damaged_before, every, self._verify_all = served.watch.damage, self._verify_all, False
        served.watch.verify(every=every)
        if served.watch.damage and not damaged_before:
            _log.warning("%s; version %s is refused", served.watch.damage, served.version)
            self._failures.pop(served.identity, None)    # the damage explains them
            verify.cache_clear()                    # its key is the time of a change, which may not show this one
        return not served.watch.damage

    def _follow(self) -> None:
        while not self._stop.is_set():
            self.step()
            self._wake.wait(POLL_SECONDS)
            self._wake.clear()

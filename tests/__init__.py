"""Tests by tier: units, trainings of toys, integration with real servers, whole runs."""

from tasks.core.python_gc import collect_rarely

collect_rarely()    # first of all: a test process imports all that there is

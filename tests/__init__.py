"""Tests by tier: units, trainings of toys, integration with real servers, whole runs."""

from tasks.core.garbage import search_seldom

search_seldom()    # first of all: a test process imports all that there is

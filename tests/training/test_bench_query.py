"""What the benchmark of one query prints of the labels that are found."""

import re

import pytest

from benchmarks import bench_query
from tests.support.toy import trained
from xcmodels.retrieval.retriever import Retriever

pytestmark = pytest.mark.usefixtures("one_thread")


def test_precision_is_printed_as_served_and_by_exact_search(capsys):
    """A Retriever that refused to be copied ended the benchmark before its last two lines."""
    made = trained("ngame")
    retriever = Retriever.load(made.retriever)
    before = dict(vars(retriever))
    bench_query.print_served(retriever, made.corpus)
    served, exact = capsys.readouterr().out.splitlines()
    assert re.match(r"served: P/1 \d", served) and re.match(r"exact: P/1 \d", exact)
    assert vars(retriever).keys() == before.keys()
    assert all(vars(retriever)[name] is value for name, value in before.items())

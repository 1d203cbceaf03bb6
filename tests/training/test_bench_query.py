"""What the benchmarks of a model's answers print, of any model and of any number of queries."""

import re
from types import SimpleNamespace

import faiss
import pytest

from benchmarks import bench_query, bench_selection, bench_vector_bits
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


def test_fewer_queries_than_are_answered_one_by_one_are_measured_all(capsys, monkeypatch, tmp_path):
    """Fewer than a hundred ended the benchmark with an error of zip, after its model was loaded."""
    made = trained("ngame")
    for name, stub in {
            "Tracker": str, "Store": str, "resolve": lambda *_: SimpleNamespace(folder=made.retriever, name="toy"),
            "newest_corpus": lambda *_: SimpleNamespace(
                store=SimpleNamespace(open=lambda pack: made.corpus.folder), pack="")}.items():
        monkeypatch.setattr(bench_vector_bits, name, stub)
    threads = faiss.omp_get_max_threads()
    bench_vector_bits.main(tmp_path, 20)
    faiss.omp_set_num_threads(threads)
    first, head, *rows = capsys.readouterr().out.splitlines()
    assert first.endswith("20 test queries") and "each of 20" in head and len(rows) == len(bench_vector_bits.FORMS)


@pytest.mark.parametrize(("known", "sizes"), [(2, [1]), (60, [1, 30]), (200, [1, 100]), (60_000, [1, 100, 30_000])])
def test_lists_are_drawn_from_the_labels_that_there_are(known, sizes):
    """A hundred of sixty labels ended the benchmark, after its first rows were measured."""
    assert bench_selection.list_sizes(known) == sizes

"""What the dispatcher of a server's workers does with what it sees in one turn."""

from serving.workers.dispatcher import Dispatcher, Worker


def test_a_worker_that_ends_as_it_says_something_does_not_end_the_server():
    """Both are seen in one turn, and what it said is read with its end."""
    worker = Worker(0)
    Dispatcher._taken(None, worker)
    assert worker.channel is None

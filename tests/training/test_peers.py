"""What workers decide together: two of them in one process, over real connections."""

import threading

import pytest
import tensorflow as tf

from myxtts.data.sampler import Failure, ReplacementJournal
from myxtts.errors import ClusterError, WorkerLostError
from myxtts.training.peers import ClusterPeers
from myxtts.training.step import Gradients
from myxtts.training.stopping import StopRequests
from tests.cluster.test_link import links, run_all

__all__ = ["links"]


class NoExchange:
    """Tensors stay where they are: these tests are about numbers and words."""

    def abort(self, reason):
        pass


@pytest.fixture
def exchanges():
    return NoExchange(), NoExchange()


@pytest.fixture
def peers(links, exchanges):
    return [ClusterPeers(link, exchange, StopRequests()) for link, exchange in zip(links(), exchanges, strict=True)]


def test_the_chief_learns_which_clips_others_could_not_read(peers):
    journals = ReplacementJournal([Failure(9, 0, 1)]), ReplacementJournal([Failure(9, 5, 2), Failure(3, 1, 1)])
    run_all(*(lambda n=n, t=t: t.join_failures(5, journals[n]) for n, t in enumerate(peers)))
    assert journals[0].list_failures() == [Failure(9, 0, 1), Failure(9, 5, 2)], "what lies behind is of no use"


def test_what_differs_is_named_to_all(peers):
    facts = {"training.seed": 1, "data.batch_size": 4}, {"training.seed": 2, "data.batch_size": 4}
    errors = run_all(
        *(lambda n=n, t=t: t.require_equal("settings", facts[n], "Give the same.") for n, t in enumerate(peers))
    )
    for error in errors:
        assert isinstance(error, ClusterError)
        assert str(error) == (
            "All workers must have the same settings, but worker 1 differs from the chief: training.seed is 2 instead of 1. Give the same."
        )


def test_a_first_sum_that_is_never_made_ends_all_in_time(links):
    class Hanging(NoExchange):
        """Waits until it is aborted, as TensorFlow does."""

        def __init__(self):
            self.is_aborted = threading.Event()

        def abort(self, reason):
            self.is_aborted.set()

        def sum(self, tensors):
            assert self.is_aborted.wait(60)
            raise tf.errors.UnavailableError(None, None, "aborted")

    peers = [ClusterPeers(link, Hanging(), StopRequests()) for link in links(rendezvous_s=1.0)]
    for error in run_all(*(peer.require_sums for peer in peers)):
        assert isinstance(error, WorkerLostError)
        assert str(error).startswith("A first sum over all workers was not made within 1 s")
        assert "open all ports between the workers" in str(error)


@pytest.mark.parametrize(
    ("kind", "is_told"),
    [
        (tf.errors.UnavailableError, True),
        (tf.errors.AbortedError, True),
        (tf.errors.CancelledError, True),
        (tf.errors.DeadlineExceededError, True),
        (tf.errors.InvalidArgumentError, False),
    ],
)
def test_sums_that_break_are_told_as_a_loss_also_where_nobody_is_known_to_be_lost(
    peers, exchanges, monkeypatch, kind, is_told
):
    monkeypatch.setattr("myxtts.cluster.meeting._LAST_WORDS_S", 0.0)

    def fail(tensors):
        raise kind(None, None, "Socket closed")

    exchanges[0].sum = fail
    with pytest.raises(WorkerLostError if is_told else kind, match="Socket closed"):
        peers[0].sum_gradients(Gradients(*[tf.zeros([])] * len(Gradients._fields)))

"""What workers decide together: two of them in one process, over real connections."""

import signal
import threading
from types import SimpleNamespace

import pytest
import tensorflow as tf

from myxtts.data.order import Kind
from myxtts.data.sampler import Failure, ReplacementJournal
from myxtts.errors import ClusterError, RunFinishedError, WorkerLostError
from myxtts.pipeline.batch import Batch, BatchFacts, BatchInfo, BatchMemory, BatchSpans, Span
from myxtts.training.model import RunProgress
from myxtts.training.peers import ClusterPeers
from myxtts.training.step import Gradients
from myxtts.training.stopping import StopRequests
from tests.cluster.test_link import links, run_all

__all__ = ["links"]


class NoExchange:
    """Tensors stay where they are: these tests are about numbers and words."""

    def abort(self, reason):
        pass

    def spread(self, variables):
        self.spread_names = list(variables)


@pytest.fixture
def exchanges():
    return NoExchange(), NoExchange()


@pytest.fixture
def peers(links, exchanges):
    return [ClusterPeers(link, exchange, StopRequests()) for link, exchange in zip(links(), exchanges, strict=True)]


def make_batch(clips, totals, updates=3):
    facts = BatchFacts(7, Kind.TRAIN, updates, 0, 1, 0, 0, clips, clips * 100, 800)
    info = BatchInfo(
        facts, (0,) * clips, (), tuple(totals), BatchSpans(Span(0, 0), Span(0, 0)), BatchMemory(1, None, None)
    )
    return Batch({"totals_2": None, "x": 1}, info)


def test_a_batch_has_the_totals_and_counts_of_all_rows(peers):
    batches = make_batch(4, [10, 200]), make_batch(3, [6, 150])
    merged = run_all(*(lambda t=t, b=b: t.merge(b) for t, b in zip(peers, batches, strict=True)))
    for batch in merged:
        assert batch.tensors["totals_2"].numpy().tolist() == [16, 350]
        assert (batch.info.facts.clips, batch.info.facts.samples, batch.info.facts.padded_samples) == (7, 700, 1600)
    assert not any(peer.is_stopping for peer in peers)


@pytest.mark.parametrize("asked", [0, 1])
def test_whoever_is_asked_to_stop_all_hear_it_with_the_same_batch(peers, asked):
    peers[asked].stop.signal = signal.SIGTERM
    run_all(*(lambda t=t: t.merge(make_batch(1, [1, 1])) for t in peers))
    assert [peer.is_stopping for peer in peers] == [True, True]


def test_all_start_where_the_chief_is(peers, exchanges):
    journals = ReplacementJournal([Failure(9, 1, 5)]), ReplacementJournal()
    trained = SimpleNamespace(list_variables=lambda: [("a", 1), ("b", 2)])
    progress = RunProgress(step=8, best_loss=1.5), RunProgress()
    savers = [
        SimpleNamespace(trained=trained, journal=journal, saved_step=step, progress=done)
        for journal, step, done in zip(journals, (8, None), progress, strict=True)
    ]
    run_all(*(lambda n=n, t=t: t.share_start(savers[n]) for n, t in enumerate(peers)))
    assert [saver.progress for saver in savers] == [RunProgress(step=8, best_loss=1.5)] * 2
    assert savers[1].journal.list_failures() == [Failure(9, 1, 5)]
    assert savers[1].saved_step == 8
    assert exchanges[1].spread_names == [1, 2]


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


def test_a_run_that_is_finished_is_finished_for_all(peers, tmp_path):
    def refuse():
        raise RunFinishedError("done", tmp_path, 5)

    def never():
        raise AssertionError("only the chief acts")

    errors = run_all(lambda: peers[0].lead("open", refuse), lambda: peers[1].lead("open", never))
    assert [type(error) for error in errors] == [RunFinishedError] * 2
    assert errors[1].step == 5
    assert run_all(lambda: peers[0].lead("begin", lambda: 3), lambda: peers[1].lead("begin", never)) == [3, 3]


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

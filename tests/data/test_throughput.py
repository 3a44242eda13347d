import itertools
from contextlib import contextmanager

import numpy as np
import pytest

from myxtts.data.loading import InProcessEngine
from myxtts.data.throughput import Piece, Rate, StealMeter, count_pieces, measure_in_turn, take_median, warm_up
from myxtts.data.throughput_loops import (
    Material,
    measure_stages,
    open_pinned_processes,
    open_plain_loop,
    open_reader,
)
from myxtts.data.throughput_tf import open_naive_dataset
from tests.data.reading import VOCABULARY, make_sampler

pytestmark = pytest.mark.usefixtures("leaves_nothing")


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the work moves on."""

    class Clock:
        now = 100.0

    monkeypatch.setattr("time.perf_counter", lambda: Clock.now)
    return Clock


def work(clock, seconds, clips=2, samples=44100):
    while True:
        clock.now += seconds
        yield Piece(clips, samples)


def test_a_rate_is_what_was_done_over_the_time_it_took(clock):
    assert count_pieces(work(clock, 0.25), 1.0) == Rate(8.0, 8.0)


def test_one_slow_piece_is_counted_with_its_own_time(clock):
    assert count_pieces(work(clock, 5.0), 1.0) == Rate(0.4, 0.4)


def test_warming_up_takes_the_time_and_the_pieces_it_is_given(clock):
    pieces = work(clock, 0.5)
    warm_up(pieces, 2.0, least=1)
    assert clock.now == 102.0
    warm_up(pieces, 0.0, least=6)
    assert clock.now == 105.0


def test_contenders_take_turns_and_the_median_counts(clock, tmp_path, monkeypatch):
    monkeypatch.setattr("myxtts.data.throughput.StealMeter", lambda: StealMeter(tmp_path / "none"))
    opened = []

    def contend(name, seconds):
        @contextmanager
        def open():
            opened.append(name)
            yield work(clock, next(seconds))

        return open

    contenders = {"a": contend("a", iter([0.5, 0.1, 0.25])), "b": contend("b", itertools.repeat(1.0))}
    measured = measure_in_turn(contenders, 3, 1.0)

    assert opened == ["a", "b"] * 3
    assert measured.rates == {"a": Rate(8.0, 8.0), "b": Rate(2.0, 2.0)}
    assert (measured.windows, measured.discarded) == (6, 0)


def test_a_window_in_which_the_host_took_the_cpu_away_is_tried_again(clock, monkeypatch):
    shares = iter([0.06, 0.01, 0.5, 0.5, 0.5])

    class Meter:
        def read_share(self):
            return next(shares)

    monkeypatch.setattr("myxtts.data.throughput.StealMeter", Meter)

    @contextmanager
    def contender():
        yield work(clock, 0.5)

    assert measure_in_turn({"a": contender}, 2, 1.0).discarded == 3
    assert next(shares, None) is None


def test_steal_is_read_from_the_kernel(tmp_path):
    file = tmp_path / "stat"
    file.write_text("cpu  100 0 50 800 0 0 0 10 0 0\ncpu0 1\n")
    meter = StealMeter(file)
    file.write_text("cpu  150 0 60 820 0 0 0 30 0 0\ncpu0 1\n")
    assert meter.read_share() == pytest.approx(0.2)
    assert StealMeter(tmp_path / "none").read_share() == 0


def test_a_median_is_taken_number_by_number():
    assert take_median([Rate(1, 30), Rate(3, 10), Rate(2, 20)]) == Rate(2, 20)


@pytest.fixture
def material(lj):
    return Material(lj.corpus, lj.ids, make_sampler(lj.corpus), VOCABULARY)


def test_every_contender_reads_the_run_s_clips(material, monkeypatch):
    monkeypatch.setattr("myxtts.data.throughput_loops.WARM_SECONDS", 0.0)
    first = [len(clips) for clips in itertools.islice(material.iterate_batches(), 8)]
    with open_plain_loop(material) as pieces:
        assert [next(pieces).clips for _ in range(4)] == first[1:5]
    with open_reader(material, InProcessEngine, depth=2) as pieces:
        assert [next(pieces).clips for _ in range(4)] == first[2:6]


@pytest.mark.parametrize("is_plain_wav", [True, False])
def test_naive_tf_data_reads_the_same_clips(material, is_plain_wav, monkeypatch):
    monkeypatch.setattr("myxtts.data.throughput_tf.WARM_SECONDS", 0.0)
    order = list(itertools.islice(material.iterate_clips(), 33))
    with open_naive_dataset(material, 4, is_plain_wav=is_plain_wav) as pieces:
        # 20 batches warmed it up.
        piece = next(pieces)
    clips = [order[number % 33] for number in range(80, 84)]
    assert piece == Piece(4, int(material.corpus.samples[clips].sum()))


def test_stages_that_are_not_needed_say_so(material):
    stages = measure_stages(material, 0.01)
    assert list(stages) == ["read bytes", "decode", "resample", "tokenise", "assemble"]
    assert stages.pop("resample") is None
    assert all(rate.clips_per_s > 0 and rate.audio_seconds_per_s > 0 for rate in stages.values())


def test_pinned_processes_decode_at_the_same_time(material):
    with open_pinned_processes(material, 2, 0.05) as pieces:
        piece = next(pieces)
    assert piece.clips >= 2
    assert piece.samples >= np.min(material.corpus.samples) * piece.clips

"""The arithmetic of larger clusters."""

import pytest

from myxtts.cli import bench_cluster
from myxtts.cli.bench_cluster import format_figures
from myxtts.cluster.scaling import Network, predict_exchange_s, predict_speed_up, predict_step_s

SLOW = Network(bytes_per_s=1e9, latency_s=0.0)


@pytest.mark.parametrize(("workers", "exchange_s"), [(1, 0.0), (2, 1.0), (4, 1.5), (1000, 1.998)])
def test_a_ring_carries_at_most_twice_the_gradients(workers, exchange_s):
    assert predict_exchange_s(workers, 1e9, SLOW) == pytest.approx(exchange_s)


def test_every_message_takes_its_time():
    assert predict_exchange_s(3, 0, Network(1e9, latency_s=0.1)) == pytest.approx(0.4)


def test_a_step_is_its_share_and_the_exchange():
    assert predict_step_s(2, 4.0, 1e9, SLOW) == pytest.approx(3.0)
    assert predict_step_s(2, 4.0, 1e9, SLOW, updates_share=0.25) == pytest.approx(2.25), (
        "gradients of four batches travel once"
    )
    assert predict_speed_up(2, 4.0, 1e9, SLOW) == pytest.approx(4 / 3)
    assert predict_speed_up(1, 4.0, 1e9, SLOW) == 1.0


def test_a_network_is_known_by_its_bits():
    assert Network.from_gigabits(10).bytes_per_s == 1.25e9


def test_what_is_simulated_is_marked():
    figures = {"steps_s": {"1": [0.2], "2": [0.1]}, "speed_up": 2.0, "exchange_s": {"1": 0.01, "link": 0.001}}
    page = format_figures(figures)
    assert "SIMULATED, not measured" in page
    assert page.index("SIMULATED") > page.index("speed-up   2.00x of at most 2x")
    assert all(len(line) <= 80 for line in page.splitlines())


class Entered(BaseException):
    """Instead of a network of its own, which this process could not leave again."""


class Measured(BaseException):
    """Instead of minutes of training."""


@pytest.mark.parametrize(("flags", "first"), [([], Entered), (["--open-ports"], Measured)])
def test_the_bench_uses_the_machines_network_only_if_told(monkeypatch, flags, first):
    def end_by(kind):
        def end(*_):
            raise kind

        return end

    monkeypatch.setattr(bench_cluster, "enter_private_network", end_by(Entered))
    monkeypatch.setattr(bench_cluster._Bench, "measure", end_by(Measured))
    monkeypatch.setattr(bench_cluster.shutil, "which", lambda name: name)
    monkeypatch.setattr(bench_cluster.os, "sched_getaffinity", lambda process: {0, 1})
    with pytest.raises(first):
        bench_cluster.run(flags, "myxtts bench cluster")

"""Cards and host, sampled by a thread beside the work: through the real bindings, against the stub of the driver."""

import threading

import pytest

from myxtts.devices.nvml import CardActivity
from myxtts.errors import NvmlError
from myxtts.monitoring import sampler as machine_sampler
from myxtts.monitoring.sampler import HostActivity, MachineSample, MachineSampler, summarise_cards, summarise_host
from tests.support.nvml import GPU_IS_LOST, StubCard
from tests.support.processes import run_code

SAMPLE = """
import dataclasses, os, pathlib, sys, time
from myxtts.monitoring.sampler import MachineSampler
def wait_for(sampler, count):
    deadline = time.monotonic() + 60
    while len(sampler.samples) < count and time.monotonic() < deadline:
        time.sleep(0.01)
"""
HOST = HostActivity(None, 100, 900)


def run_sampler(code, machine):
    return run_code(SAMPLE + code, machine.environ())


def test_cards_are_sampled_until_the_block_ends(make_machine):
    machine = make_machine(
        StubCard(0, util=-1), StubCard(1, util=80), extra=["activity 1 250000 350000 1500 1980 70 4"]
    )
    code = """
with MachineSampler([0, 1], period_s=0.01) as sampler:
    wait_for(sampler, 2)
    file = pathlib.Path(os.environ["NVML_STUB"])
    file.write_text(file.read_text().replace("250000", "310000"))
    wait_for(sampler, len(sampler.samples) + 2)
count = len(sampler.samples)
time.sleep(0.05)
report({"first": [dataclasses.asdict(card) for card in sampler.samples[0].cards],
        "power_w": sorted({sample.cards[1].power_w for sample in sampler.samples}),
        "grew": len(sampler.samples) - count, "problem": sampler.problem, "tensorflow": "tensorflow" in sys.modules})
"""
    told = run_sampler(code, machine)
    assert told["first"][0]["utilization_percent"] is None
    assert told["first"][1]["utilization_percent"] == 80
    assert told["first"][1]["throttled_by"] == ["power limit"]
    assert told["power_w"] == [250.0, 310.0]
    assert (told["grew"], told["problem"], told["tensorflow"]) == (0, None, False)


def test_a_card_that_falls_off_the_bus_leaves_the_samples_and_is_told(make_machine):
    code = """
with MachineSampler([0, 1], period_s=0.01) as sampler:
    wait_for(sampler, 1)
report([[card.physical_id for card in sampler.samples[0].cards], sampler.problem])
"""
    told = run_sampler(code, make_machine(StubCard(0, state=GPU_IS_LOST), StubCard(1)))
    assert told == [[1], "The NVIDIA driver could not tell GPU 0: GPU is lost."]


def test_without_a_driver_the_host_is_sampled_all_the_same(make_machine):
    code = """
with MachineSampler([0], period_s=0.01) as sampler:
    wait_for(sampler, 3)
last = sampler.samples[-1]
report([len(last.cards), sampler.problem, last.host.rss_bytes, last.host.cpu_share, dataclasses.asdict(sampler.samples[0].host)])
"""
    cards, problem, rss_bytes, last_share, first = run_sampler(code, make_machine(extra=["init 9"]))
    assert (cards, problem) == (0, "The NVIDIA driver does not answer: Driver Not Loaded.")
    assert rss_bytes > 1 << 20
    assert first["cpu_share"] is None, "a share is between two readings"
    assert 0 <= last_share <= 1
    assert first["free_bytes"] > 0


def test_a_driver_that_hangs_is_told_and_not_waited_for(monkeypatch):
    is_back = threading.Event()

    class HangingNvml:
        def __enter__(self):
            is_back.wait()
            raise NvmlError("back")

        def __exit__(self, *error):
            raise AssertionError("never opened")

    monkeypatch.setattr(machine_sampler, "Nvml", HangingNvml)
    monkeypatch.setattr(machine_sampler, "LONGEST_READING_S", 0.05)
    before = set(threading.enumerate())
    with MachineSampler([0], period_s=60) as sampler:
        (thread,) = set(threading.enumerate()) - before
    problem = sampler.problem
    is_back.set()
    thread.join()
    assert problem.startswith("The NVIDIA driver hangs: it has not answered for 0.05 s.")


def make_activity(**changes):
    facts = dict.fromkeys(CardActivity.__dataclass_fields__)
    return CardActivity(**{**facts, "physical_id": 0, **changes})


def sample(*cards, host=HOST):
    return MachineSample(0.0, cards, host)


def test_a_summary_averages_what_is_known_and_names_what_often_held_the_clocks_down():
    samples = [
        sample(make_activity(utilization_percent=80, throttled_by=("temperature",))),
        sample(make_activity(utilization_percent=None, throttled_by=None)),
        sample(make_activity(utilization_percent=100, throttled_by=())),
        sample(make_activity(utilization_percent=90, throttled_by=("temperature", "power limit"))),
        *[sample(make_activity(utilization_percent=90, throttled_by=("temperature",)))] * 3,
    ]
    (card,) = summarise_cards(samples)
    assert card.utilization == pytest.approx(0.9)
    assert card.throttled_by == ("temperature",)
    assert card.power_w is None
    assert "busy 90.0%, unknown, unknown, unknown, held down by temperature" in card.describe()


def test_what_was_never_known_stays_unknown_and_what_does_nothing_is_at_0():
    (card,) = summarise_cards([sample(make_activity())])
    assert card.throttled_by is None
    assert card.describe().endswith("held down by unknown")
    assert summarise_host([]).describe() == ("processors busy unknown, processes of the run hold unknown, free unknown")
    (idle,) = summarise_cards([sample(make_activity(utilization_percent=0, throttled_by=()))])
    assert "busy 0.0%" in idle.describe()
    assert idle.describe().endswith("held down by nothing")

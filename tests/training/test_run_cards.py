"""Several cards of one machine that all train, rehearsed on logical CPUs of one process: the same losses as one, in every mode."""

import signal

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from tests.support.faults import Fault
from tests.support.tiny_run import TinyRun, at_step, leaves_nothing, run_tiny, start_tiny
from tests.training.test_run_decoder import FLAGS as DECODER_FLAGS
from tests.training.test_run_decoder import SETTINGS as DECODER_SETTINGS
from tests.training.test_run_starts import OF_THE_START

CARDS = ("--model-gpus", "0,1")
FLAGS = (
    *("--grad-accum", "2", "--lr-schedule", "constant", "--validation-interval", "3", "--checkpoint-interval", "2"),
    *("--keep-last", "99", "--ema-decay", "0.5", "--clip-norm", "1"),
)
EXACT = {"model.dropout": 0}
"""Masks are drawn for a device's own rows, so with dropout others are left out than by one device."""


def assert_same_losses(run, alone, rel=2e-5):
    for read in ("losses", "validations"):
        expected = dict(getattr(alone, read))
        assert expected
        assert dict(getattr(run, read)) == {step: pytest.approx(loss, rel=rel) for step, loss in expected.items()}


def assert_same_files(one, other, **tolerance):
    for name in ("model.safetensors", "training.safetensors"):
        first, second = (load_file(max(run.folder.glob("step-*")) / name) for run in (one, other))
        assert first.keys() == second.keys()
        for key, value in first.items():
            np.testing.assert_allclose(second[key], value, err_msg=key, **tolerance)


@pytest.fixture(scope="session")
def pair(share, base_flags):
    """The same three updates by one device and by two, on which some clips cannot be read."""

    def make(folder):
        folder.mkdir()
        flags = (*base_flags, *FLAGS, "--max-steps", "3")
        run_tiny(folder / "alone", *flags, **EXACT)
        live = start_tiny(folder / "run", *flags, *CARDS, **EXACT)
        live.wait_for(at_step(folder / "run", 1))
        listening = [each for each in psutil.Process(live.process.pid).net_connections() if each.status == "LISTEN"]
        (folder / "listening").write_text(repr(listening))
        live.finish(0)

    return share("cards", make)


def test_the_losses_weights_and_clips_are_those_of_one_device(pair):
    alone, run = TinyRun.at(pair / "alone"), TinyRun.at(pair / "run")
    assert_same_losses(run, alone)
    assert run.counts == alone.counts
    assert_same_files(alone, run, rtol=2e-3, atol=2e-5)
    assert "clip_05" in (run.folder / "drop_report.json").read_text()


def test_the_plan_is_told_and_no_port_is_opened(pair):
    text = TinyRun.at(pair / "run").text
    assert "Model   /CPU:1, stands for GPU 0" in text
    assert "/CPU:2, stands for GPU 1: data-parallel" in text
    assert "Model will be placed on /CPU:1 and /CPU:2" in text
    assert (pair / "listening").read_text() == "[]"


def test_it_goes_on_as_if_it_had_not_been_killed_and_on_one_device_up_to_rounding(tmp_path, base_flags):
    """With dropout, average and accumulation, bit for bit."""
    flags = (*base_flags, *FLAGS, "--max-steps", "5")
    unbroken, broken = start_tiny(tmp_path / "unbroken", *flags, *CARDS).finish(0), tmp_path / "broken"
    live = start_tiny(broken, *flags, *CARDS)
    live.strike(at_step(broken, 3), signal.SIGKILL)
    live.finish(-signal.SIGKILL)
    assert start_tiny(broken, *flags, *CARDS).finish(0).story == unbroken.story
    run = start_tiny(broken, *base_flags, *FLAGS, "--max-steps", "6").finish(0)
    assert "only equal up to rounding: workers was 2, now null" in run.text


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["dual", "isolated"])
def test_whoever_prepares_the_run_is_the_same(tmp_path, base_flags, mode):
    flags = (*base_flags, *FLAGS, *CARDS, "--max-steps", "3")
    single = start_tiny(tmp_path / "single", *flags).finish(0)
    with leaves_nothing(tmp_path / mode):
        assert start_tiny(tmp_path / mode, *flags, mode=mode).finish(0).story == single.story


@pytest.mark.soak
def test_out_of_memory_is_retried_in_parts_on_every_device(tmp_path, base_flags, pair):
    fault = Fault("computing gradients", "runs out of memory", 3)
    run = start_tiny(tmp_path / "run", *base_flags, *FLAGS, *CARDS, "--max-steps", "3", fault=fault, **EXACT).finish(0)
    assert "Going on with batches cut into 2 parts" in run.text
    assert_same_losses(run, TinyRun.at(pair / "alone"))


@pytest.mark.soak
def test_a_codec_is_trained_by_several_as_by_one_and_first_where_none_is_given(tmp_path, codec_run):
    """Its codebook is drawn from the whole batch, and codes that nothing uses are drawn anew."""
    corpus = ("--train-data", codec_run / "corpus")
    flags = (*corpus, "--validation-interval", "3", "--stage", "codec", "--max-steps", "24")
    alone = run_tiny(tmp_path / "alone", *flags)
    assert_same_losses(start_tiny(tmp_path / "run", *flags, *CARDS).finish(0), alone, rel=1e-3)
    first = (*corpus, "--max-steps", "1", "--codec-steps", "2")
    assert "No codec was given" in start_tiny(tmp_path / "first", *first, *CARDS).finish(0).text


@pytest.mark.soak
def test_a_decoder_is_trained_by_several_as_by_one(tmp_path, codec_run, unbroken):
    flags = (*DECODER_FLAGS, "--train-data", codec_run / "corpus", "--init-from", unbroken.folder, "--max-steps", "2")
    alone = run_tiny(tmp_path / "alone", *flags, **DECODER_SETTINGS)
    assert_same_losses(start_tiny(tmp_path / "run", *flags, *CARDS, **DECODER_SETTINGS).finish(0), alone, rel=1e-4)


@pytest.mark.soak
@pytest.mark.parametrize(
    "added",
    [("--lora-rank", "2"), ("--enable-xla",), ("--gradient-checkpointing",)],
    ids=["adapters", "XLA", "recomputing"],
)
def test_it_works_with_everything_else(tmp_path, codec_run, unbroken, added):
    start = ("--train-data", codec_run / "corpus", "--init-from", unbroken.folder, *FLAGS, "--max-steps", "3", *added)
    settings = {**OF_THE_START, **EXACT}
    alone = run_tiny(tmp_path / "alone", *start, **settings)
    run = start_tiny(tmp_path / "run", *start, *CARDS, **settings).finish(0)
    assert_same_losses(run, alone, rel=1e-4)


@pytest.mark.parametrize("precision", ["mixed_float16", pytest.param("mixed_bfloat16", marks=pytest.mark.soak)])
def test_half_precision_trains_on_several_as_on_one(tmp_path, base_flags, precision):
    flags = (*base_flags, *FLAGS, "--max-steps", "2", "--validation-interval", "2", "--mixed-precision", precision)
    alone = run_tiny(tmp_path / "alone", *flags, **EXACT)
    run = start_tiny(tmp_path / "run", *flags, *CARDS, **EXACT).finish(0)
    assert_same_losses(run, alone, rel=1e-2)

"""The check that a trained checkpoint speaks on the device."""

from __future__ import annotations

import time

import numpy as np

from myxtts.audio.units import SAMPLE_RATE_HZ
from myxtts.data.demo_corpus import demo_corpus_path
from myxtts.devices import runtime
from myxtts.devices.plan import Mode
from myxtts.inference.loading import load_synthesizer
from myxtts.inference.settings import SpeechSettings
from myxtts.training.placement import check_variables
from myxtts.training.selfcheck.situation import Situation, plan_mode
from myxtts.training.selfcheck.work import CheckFailedError, Seen
from myxtts.utils.commons import get_device_context

TEXT = "The device speaks."


def speak(situation: Situation) -> Seen:
    """A sentence of the model that `train-single` made, with its weights on the model's device."""
    plan = plan_mode(situation, Mode.SINGLE)
    runtime.apply_plan(plan)
    clip = sorted((demo_corpus_path() / "wavs").iterdir())[0]
    with get_device_context(plan.model.device):
        synthesizer = load_synthesizer(situation.root / "train-single")
        check_variables(((each.path, each.value) for each in synthesizer.xtts.gpt.variables), plan.model.device)
        voice = synthesizer.clone_voice([clip])
        began = time.perf_counter()
        samples = synthesizer.speak(TEXT, voice, "en", SpeechSettings(seed=0)).samples
        seconds = time.perf_counter() - began
    if samples.size == 0 or not np.isfinite(samples).all() or not np.abs(samples).max() > 0:
        raise CheckFailedError(f"Speech must be finite and not silent, but {samples.size} samples are not.")
    rate = synthesizer.rate_hz or SAMPLE_RATE_HZ
    facts = {"seconds_of_speech": samples.size / rate, "seconds_taken": seconds, "device": plan.model.device}
    return Seen(f"{samples.size / rate:.1f} s of speech in {seconds:.1f} s on {plan.model.device}", facts)

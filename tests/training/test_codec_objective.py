"""The codec's objective: when it learns with codes, and what its codebook is drawn from."""

import numpy as np
import tensorflow as tf

from myxtts.config import ModelConfig
from myxtts.models.xtts import build_dvae
from myxtts.training.objectives import QUANTISED, UNQUANTISED, CodecObjective


def test_codes_come_with_the_draw_of_the_codebook():
    dvae = build_dvae(ModelConfig(size="tiny", dvae_width=16, audio_codes=32), seed=1)
    objective = CodecObjective(dvae, seed=2, free_steps=4, total_steps=100)
    mel_BFM = np.random.default_rng(0).normal(size=(3, 64, 80)).astype(np.float32)
    batch = {"mel_BFM": tf.constant(mel_BFM), "frame_lengths_B": tf.constant([64, 40, 8], tf.int32)}
    before = objective.model.codebook.vectors.numpy().copy()
    assert [objective.choose_phase(step) for step in (3, 4)] == [UNQUANTISED, QUANTISED]
    assert [objective.list_phases(step) for step in (3, 4)] == [[3, 4], [4]]
    objective.begin_step(3, batch)
    np.testing.assert_array_equal(objective.model.codebook.vectors, before)
    objective.begin_step(4, batch)
    assert np.abs(objective.model.codebook.vectors.numpy() - before).max() > 0.01

"""From audio and text to speech, and from audio and text to a loss, through every part and the audio front ends."""

import numpy as np
import pytest
import tensorflow as tf

from myxtts.audio.mels import compute_conditioning_mel, compute_dvae_mel, compute_slice_mel, compute_speaker_mel
from myxtts.audio.resampling_tf import resample_batch
from myxtts.audio.units import SAMPLE_RATE_HZ, SPEAKER_RATE_HZ
from myxtts.models.decoding import generate
from myxtts.models.dvae import DVAE
from myxtts.models.gpt import GPT, GPTBatch
from myxtts.models.names import load_checkpoint_arrays
from myxtts.models.sampling import Greedy
from myxtts.models.speaker import SpeakerEncoder
from myxtts.models.waveform import WaveformDecoder, change_speed
from myxtts.models.weights import DVAE_PREFIX
from myxtts.models.xtts import XTTS, PartMissingError
from tests.models.reference import (
    DVAE_SIZE,
    SPEAKER_SIZE,
    WHOLE_DECODER_SIZE,
    WHOLE_GPT_SIZE,
    count_codes,
    differ,
    load_case,
    load_state,
)
from tests.models.small import build_small_gpt


@pytest.fixture(scope="module")
def xtts():
    xtts = XTTS(
        GPT(WHOLE_GPT_SIZE),
        decoder=WaveformDecoder(WHOLE_DECODER_SIZE),
        speaker_encoder=SpeakerEncoder(SPEAKER_SIZE),
        dvae=DVAE(DVAE_SIZE),
    )
    load_checkpoint_arrays(xtts, load_state("l_end_to_end")).require_complete()
    load_checkpoint_arrays(xtts.dvae, load_state("m_train_batch"), prefix=DVAE_PREFIX).require_complete()
    return xtts


@pytest.fixture(scope="module")
def spoken():
    return load_case("l_end_to_end")


def cut_chunks(wav, seconds, xtts):
    size = seconds * SAMPLE_RATE_HZ
    chunks = [wav[:, first : first + size] for first in range(0, wav.shape[1], size)]
    lengths = [tf.constant([chunk.shape[1]]) for chunk in chunks]
    norms = xtts.mel_norms.numpy()
    return [compute_conditioning_mel(chunk, length, norms)[0] for chunk, length in zip(chunks, lengths, strict=True)]


def test_prompt_of_a_reference_in_chunks(xtts, spoken):
    wav = tf.constant(spoken["in/wav_22k"])
    prompt = xtts.make_reference_prompt(cut_chunks(wav, 4, xtts))
    assert differ(prompt, spoken["out/cond_latents_30s_chunk4"]) < 1e-3
    first_six = xtts.make_reference_prompt(cut_chunks(wav[:, : 6 * SAMPLE_RATE_HZ], 6, xtts))
    assert differ(first_six, spoken["out/cond_latents_6s_chunk6"]) < 1e-3


def test_speaker_of_a_reference(xtts, spoken):
    wav = tf.constant(spoken["in/wav_22k"])
    wav, lengths = resample_batch(wav, tf.constant([wav.shape[1]]), SAMPLE_RATE_HZ, SPEAKER_RATE_HZ)
    mel, _ = compute_speaker_mel(wav, lengths)
    assert differ(xtts.embed_speaker(mel), spoken["out/speaker_embedding"][..., 0]) < 1e-3


def test_text_to_speech(xtts, spoken):
    prompt, text = tf.constant(spoken["out/cond_latents_30s_chunk4"]), tf.constant(spoken["in/text_ids"])
    speaker = tf.constant(spoken["out/speaker_embedding"][..., 0])
    said = tf.function(
        lambda prompt, text: generate(xtts.gpt, prompt, text, rule=Greedy(5.0), max_codes=57), autograph=False
    )(prompt, text)
    latents = said.latents_BMC[:, : said.count]
    np.testing.assert_array_equal(said.codes_BM[:, : said.count], spoken["out/codes"])
    assert differ(latents, spoken["out/gpt_latents"]) < 1e-4
    assert differ(xtts.decoder(latents, speaker)[0], spoken["out/wav"]) < 1e-3
    assert differ(xtts.decoder(change_speed(latents, 0.8), speaker)[0], spoken["out/wav_speed0.8"]) < 1e-3


def test_training_batch_from_audio(xtts):
    arrays = load_case("m_train_batch")
    norms = xtts.mel_norms.numpy()
    cond_mel = compute_slice_mel(tf.constant(arrays["in/conditioning"][:, 0, 0]), norms)
    assert differ(cond_mel, arrays["out/cond_mels"][:, 0].swapaxes(1, 2)) < 1e-3
    wav, samples = tf.constant(arrays["in/wav"][:, 0]), tf.constant(arrays["in/wav_lengths"])
    codes = xtts.encode_audio(compute_dvae_mel(wav, samples, norms, reference_padding=True)[0])
    np.testing.assert_array_equal(codes, arrays["out/audio_codes"])
    batch = GPTBatch(
        cond_mel,
        tf.constant(arrays["in/padded_text"], tf.int64),
        tf.constant(arrays["in/text_lengths"]),
        codes[:, : int(tf.reduce_max(count_codes(samples)))],
        count_codes(samples),
        tf.constant(arrays["in/cond_idxs"]),
    )
    losses = xtts.gpt.compute_losses(batch, spans_as_reference=True)
    assert differ(losses.text.mean, arrays["out/loss_text"]) < 1e-4
    assert differ(losses.audio.mean, arrays["out/loss_mel"]) < 1e-4
    assert differ(losses.weigh(), arrays["out/loss"]) < 1e-4
    plain = xtts.gpt.compute_losses(batch._replace(spans_B2=None))
    assert differ(plain.audio.mean, arrays["out/loss_mel_no_cond_idxs"]) < 1e-4


def test_a_part_that_is_not_there_is_named():
    alone = XTTS(build_small_gpt())
    with pytest.raises(PartMissingError, match="takes the model's dvae"):
        alone.encode_audio(tf.zeros([1, 4, 80]))
    with pytest.raises(PartMissingError, match="takes the model's speaker_encoder"):
        alone.embed_speaker(tf.zeros([1, 4, 64]))

"""Joins without gap, repetition or click."""

import numpy as np
import pytest

from myxtts.inference.speech import CrossFader, EdgeSoftener
from tests.models.reference import load_case


def join_all(sequence):
    arrays = load_case("k_stream_chunks")
    fader = CrossFader()
    count = sum(name.startswith(f"in/{sequence}_") for name in arrays)
    renderings = [arrays[f"in/{sequence}_wav_gen_{index}"] for index in range(count)]
    chunks = [fader.join(wav, 0, is_last=wav is renderings[-1]) for wav in renderings]
    return renderings, chunks, arrays


def test_cross_fades_are_the_references():
    _, chunks, arrays = join_all("A")
    for index, chunk in enumerate(chunks):
        np.testing.assert_allclose(chunk, arrays[f"out/A_chunk_{index}"], atol=1e-5)


@pytest.mark.parametrize("sequence", ["A", "B", "C"])
def test_joined_sound_is_the_last_rendering_but_for_the_fades(sequence):
    renderings, chunks, _ = join_all(sequence)
    joined = np.concatenate(chunks)
    assert len(joined) == len(renderings[-1])
    seams = np.cumsum([len(chunk) for chunk in chunks])[:-1]
    inside_fade = np.zeros(len(joined), bool)
    for seam in seams:
        inside_fade[seam : seam + 1024] = True
    position = 0
    for wav, chunk in zip(renderings, chunks, strict=True):
        span = slice(position, position + len(chunk))
        own = ~inside_fade[span]
        np.testing.assert_array_equal(chunk[own], wav[span][own])
        position += len(chunk)


def test_too_little_new_sound_waits_for_more():
    fader = CrossFader(overlap_samples=100)
    ramp = np.arange(1000, dtype=np.float32)
    assert len(fader.join(ramp[:300], 0, is_last=False)) == 200
    assert len(fader.join(ramp[:350], 0, is_last=False)) == 0
    rest = fader.join(ramp[150:1000], 150, is_last=True)
    np.testing.assert_allclose(rest, ramp[200:], rtol=1e-6)


@pytest.mark.parametrize("cuts", [[], [50], [200, 500]])
def test_edges_are_soft_however_the_piece_is_cut(cuts):
    softener = EdgeSoftener(20_000)
    parts = np.split(np.ones(1000, np.float32), cuts)
    softened = np.concatenate(
        [softener.soften(part, is_last=index == len(parts) - 1) for index, part in enumerate(parts)]
    )
    assert softened[0] == softened[-1] == 0
    assert np.all(softened[100:900] == 1)
    assert np.max(np.abs(np.diff(softened))) < 0.0101

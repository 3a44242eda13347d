"""A finished run says a sentence, or says why it does not."""

import numpy as np
import pytest
import soundfile

from myxtts.errors import UserError
from myxtts.inference.synthesizer import load_synthesizer
from myxtts.training import listening as closing_speech
from tests.data.reading import scan_small
from tests.data.shared import write_clips, write_metadata
from tests.inference.builders import write_small_model


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    write_clips(folder, ("a", "b"))
    write_metadata(folder, "a|One.", "b|Two.")
    return scan_small(folder, tmp_path / "index").corpus


def test_the_first_text_is_said_in_the_voice_of_another_clip(corpus, tmp_path, monkeypatch):
    heard = []

    def load(folder, **options):
        synthesizer = load_synthesizer(folder, **options)
        clone = synthesizer.clone_voice
        monkeypatch.setattr(synthesizer, "clone_voice", lambda paths: heard.append(paths) or clone(paths))
        return synthesizer

    monkeypatch.setattr(closing_speech, "load_synthesizer", load)
    spoken = closing_speech.speak_at_end(write_small_model(tmp_path / "model"), corpus)

    assert (spoken.text, spoken.path) == ("One.", tmp_path / "model" / "spoken.wav")
    assert [[path.name for path in paths] for paths in heard] == [["b.wav"]]
    samples, rate_hz = soundfile.read(spoken.path)
    assert rate_hz == 22050
    assert np.abs(samples).max() > 0


def test_a_model_that_cannot_speak_ends_no_run(corpus, tmp_path, monkeypatch, caplog):
    def refuse(*arguments, **options):
        raise UserError("its tongue is tied")

    monkeypatch.setattr(closing_speech, "load_synthesizer", refuse)
    assert closing_speech.speak_at_end(tmp_path, corpus) is None
    assert "Nothing was said at the end: its tongue is tied" in caplog.text

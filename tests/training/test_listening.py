"""What is heard at a validation, and the sentence that a finished run says, or why it does not."""

import numpy as np
import pytest
import soundfile

from myxtts.inference.generation import CodeGenerator, GeneratedRow
from myxtts.inference.vocoders import MelVocoder
from myxtts.models.dvae import DVAE
from myxtts.models.sizes import DVAESize
from myxtts.models.xtts import initialise_weights
from myxtts.training import listening
from myxtts.training.listening import Listener, predict_codes, render_codes, speak_codes
from myxtts.training.objectives import GPTObjective
from myxtts.units import SAMPLES_PER_CODE
from tests.data.reading import scan_small
from tests.data.shared import write_clips, write_metadata
from tests.inference.builders import write_small_model
from tests.training.test_step import build_least_gpt, cut_rows, make_tensors


@pytest.fixture(scope="module")
def gpt():
    return build_least_gpt()


@pytest.fixture(scope="module")
def vocoder(gpt):
    dvae = DVAE(DVAESize(width=8, codes=gpt.size.audio_codes, blocks=1))
    initialise_weights(dvae, 1)
    return MelVocoder(dvae, np.ones(80, np.float32))


def test_a_model_on_its_own_is_given_text_and_voice_and_an_end(gpt, monkeypatch):
    asked = []

    def generate(generator, rows, settings):
        asked.append((*rows, settings.max_codes))
        return [GeneratedRow(np.arange(3, dtype=np.int32), np.zeros((3, 1), np.float32), stopped=False)]

    monkeypatch.setattr(CodeGenerator, "generate", generate)
    batch = make_tensors(seed=2)
    row = cut_rows(batch, 0, 1)
    tokens, codes = int(row["text_lengths_B"][0]), int(row["code_lengths_B"][0])
    assert tokens < row["text_BT"].shape[1], "padding is what must be left out"
    speak = speak_codes(gpt, 1.0)
    np.testing.assert_array_equal(speak(row), [0, 1, 2])
    said, most = asked.pop()
    assert said.ids == tuple(row["text_BT"][0, :tokens].numpy())
    np.testing.assert_allclose(said.voice.prompt_PC, gpt.make_prompt(row["mel_BFM"])[0], atol=1e-5)
    assert most == 2 * codes
    monkeypatch.setattr(listening, "LONGEST_CODES", 3)
    speak(row)
    again, most = asked.pop()
    assert most == 3, "however long the clip is"
    assert again.key == said.key, "the same draws at every validation"


def test_both_sounds_of_a_validation_are_written_and_only_one_of_them_is_led(gpt, vocoder, tmp_path):
    led = render_codes(predict_codes(GPTObjective(gpt)), vocoder)
    listener = Listener(led, tmp_path, speak=render_codes(speak_codes(gpt, 1.0), vocoder))
    paths = listener.hear(7, make_tensors(), None)
    assert paths == [tmp_path / "samples" / f"step-00000007{kind}.wav" for kind in ("", "-free")]
    before = [path.read_bytes() for path in paths]
    assert before[0] != before[1]
    other_codes = make_tensors(seed=1)["codes_BM"]
    again = listener.hear(8, make_tensors(codes_BM=other_codes), None)
    assert [path.read_bytes() == content for path, content in zip(again, before, strict=True)] == [False, True]


def test_a_model_that_stops_at_once_is_heard_as_silence(gpt, vocoder, tmp_path):
    stop_M = np.array([gpt.size.stop_audio_token], np.int32)
    [path] = Listener(render_codes(lambda row: stop_M, vocoder), tmp_path).hear(1, make_tensors(), None)
    samples, _ = soundfile.read(path)
    assert len(samples) == SAMPLES_PER_CODE
    assert not samples.any()


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    write_clips(folder, ("a", "b"))
    write_metadata(folder, "a|One.", "b|Two.")
    return scan_small(folder, tmp_path / "index")


def test_the_first_text_is_said_in_the_voice_of_another_clip(corpus, tmp_path, caplog):
    model = write_small_model(tmp_path / "model")
    corpus.find_file(0).unlink()
    spoken = listening.speak_at_end(model, corpus, could_speak=False)
    assert (spoken.text, spoken.path) == ("One.", model / "spoken.wav")
    samples, rate_hz = soundfile.read(spoken.path)
    assert rate_hz == 22050
    assert np.abs(samples).max() > 0
    page = (model / "listen.html").read_text(encoding="utf-8")
    assert (page.count(">One.</figcaption>"), page.count("<audio")) == (1, 1)
    assert listening.speak_at_end(model, corpus, could_speak=True).text == listening.UNSEEN_TEXTS["en"]
    corpus.find_file(1).unlink()
    assert listening.speak_at_end(model, corpus, could_speak=False) is None
    assert "b.wav" in caplog.text


def test_a_model_that_cannot_speak_ends_no_run(corpus, tmp_path, caplog):
    assert listening.speak_at_end(tmp_path / "nowhere", corpus, could_speak=True) is None
    assert "Nothing was said at the end: " in caplog.text

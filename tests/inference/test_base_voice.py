"""The voice that comes with the package."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from myxtts.checkpoints.model_directory import read_model_directory
from myxtts.checkpoints.store import BASE_FOLDER, find_model_directory
from myxtts.config import XTTSConfig
from myxtts.data.run_data import collect_run_data
from myxtts.errors import ModelFileError
from myxtts.inference.speech import SpeechSettings
from myxtts.inference.synthesizer import build_parts, load_synthesizer
from myxtts.models.gpt import GPTBatch
from myxtts.text.tokenizer import Tokenizer
from myxtts.training.model import warn_of_strange_voices
from myxtts.training.starting_point import read_codec
from tests.support.tiny_run import MODEL_SETTINGS, make_corpus, run_tiny

MOST_BYTES = 48_000_000


def test_it_is_found_by_name_and_small(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_model_directory(Path("base")) == BASE_FOLDER
    assert sum(file.stat().st_size for file in BASE_FOLDER.iterdir()) <= MOST_BYTES
    (tmp_path / "base").mkdir()
    with pytest.raises(ModelFileError, match="folder of that name here too"):
        find_model_directory(Path("base"))


def test_it_says_what_nobody_trained_on_and_comes_to_an_end():
    synthesizer = load_synthesizer("base")
    speech = synthesizer.speak("You were just in time.", synthesizer.find_voice(), "en", SpeechSettings(seed=1))
    assert all(piece.stopped for piece in speech.pieces)
    assert 0.8 < len(speech.samples) / synthesizer.rate_hz < 2.6
    assert np.sqrt(np.mean(speech.samples**2)) > 0.01
    # Its longest clips, of 6 s, have about 130 characters, most of them half of that.
    text = "We walked along the river and talked about the long winter and everything that came with it."
    settings = SpeechSettings(max_codes=3, retries=0)
    spoken = [piece.text for piece in synthesizer.speak(text, synthesizer.find_voice(), "en", settings).pieces]
    assert [len(piece) <= 64 for piece in spoken] == [True, True]
    assert " ".join(spoken) == text


def test_its_logits_are_those_of_the_tree_that_trained_it():
    """The weights were trained with an older tree, which computed these logits of a fixed sequence."""
    directory = read_model_directory(BASE_FOLDER)
    gpt = build_parts(directory, Tokenizer(BASE_FOLDER / "vocab.json")).gpt
    text = tf.constant([[83, 38, 27, 33, 2, 35, 17, 30, 17]], tf.int64)
    codes = tf.constant(np.arange(40, dtype=np.int64)[None] * 97 % 4096)
    framed = gpt.frame(GPTBatch(tf.zeros([1, 172, 80]), text, tf.constant([9]), codes, tf.constant([40])))
    _, logits_BMV = gpt.compute_logits(gpt.make_prompt(tf.zeros([1, 172, 80])), *framed, None)
    known = json.loads((BASE_FOLDER / "config.json").read_text())["logits"]
    np.testing.assert_allclose(logits_BMV.numpy()[0, 5, :8], known, atol=2e-3)


def test_a_run_says_at_its_start_that_the_codec_does_not_know_a_voice(tmp_path, caplog):
    of_the_voice = dict.fromkeys((*MODEL_SETTINGS, "data.prompt_seconds"))
    corpus = make_corpus(tmp_path / "corpus")
    run = run_tiny(tmp_path / "run", "--train-data", corpus, "--init-from", "base", "--max-steps", "1", **of_the_voice)
    assert "learnt few voices, and these are not among them: of 16 clips it loses" in run.text
    known = collect_run_data(XTTSConfig(training={"checkpoint_dir": str(tmp_path)}), folder=tmp_path).train
    warn_of_strange_voices(known, read_codec(BASE_FOLDER), seed=0)
    assert caplog.text == ""

"""A whole evaluation with a tiny untrained model and judges of our own."""

import json

import numpy as np
import pytest
import soundfile

from myxtts.errors import EvaluationError, MachineError
from myxtts.evaluation.evaluate import run_evaluation
from myxtts.evaluation.judges import EvaluationRequest, JudgeChoice, choose_material, open_judges
from myxtts.evaluation.results import COPY, ORIGINAL, SENTENCE, SPOKEN
from myxtts.inference.speech import SpeechSettings
from myxtts.inference.synthesizer import load_synthesizer
from tests.inference.builders import write_small_model

LINES = ["a|Hello there.|ana", "b|Good day.|ana", "c|Hello.|ben", "d|It is late.|ben"]
SETTINGS = SpeechSettings(greedy=True, max_codes=12)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_small_model(tmp_path_factory.mktemp("evaluated") / "model")


@pytest.fixture(scope="module")
def synthesizer(model):
    return load_synthesizer(model)


@pytest.fixture
def corpus(tmp_path):
    """Four clips of two speakers: one is loud, one is quiet."""
    folder = tmp_path / "corpus"
    (folder / "wavs").mkdir(parents=True)
    (folder / "metadata.csv").write_text("audio_file|text|speaker_name\n" + "".join(f"{line}\n" for line in LINES))
    for number, line in enumerate(LINES):
        samples = np.random.default_rng(number).normal(0, 0.1 if number < 2 else 0.01, 22050)
        soundfile.write(folder / "wavs" / f"{line[0]}.wav", samples, 22050)
    return folder


def make_request(model, corpus, **more):
    ears = {
        "recogniser": JudgeChoice("tests.evaluation.ears:hear"),
        "speaker_judge": JudgeChoice("tests.evaluation.ears:feel"),
    }
    values = {"checkpoint": model, "data": corpus, "out": corpus.parent / "out", "limit": None, "settings": SETTINGS}
    return EvaluationRequest(**{**values, **ears, **more})


def evaluate(request, synthesizer, material=None):
    material = material or choose_material(request)
    with open_judges(request) as judges:
        return run_evaluation(request, material, judges, synthesizer)


def test_every_sentence_is_spoken_heard_and_compared(model, corpus, synthesizer):
    request = make_request(model, corpus)
    evaluation = evaluate(request, synthesizer)
    summary = evaluation["summary"]
    assert [sentence["name"] for sentence in evaluation["sentences"]] == [f"wavs/{line[0]}.wav" for line in LINES]
    # "hello there" is right for the first of four sentences, and half right for the third.
    assert summary[ORIGINAL]["word_error_rate"] == (0 + 2 + 1 + 3) / (2 + 2 + 1 + 3)
    assert summary[ORIGINAL]["share_nearest_to_own_speaker"] == 1.0
    assert summary[ORIGINAL]["mel_distance_db"] is None
    assert summary[COPY]["mel_distance_db"] > 0
    assert 0 <= summary["code_accuracy"] < 0.5
    assert summary["real_time_factor"] > 0
    first = evaluation["sentences"][0]
    assert first["voice"]["recordings"] == ["b.wav"]
    # 22 codes of a second of recording, and the stop token.
    assert first["true_codes"] == 23
    assert first[SPOKEN]["seconds"] == pytest.approx(first["codes"] * 1024 / 22050, abs=0.06)
    assert first[COPY]["seconds"] == pytest.approx(1.0)
    assert evaluation["failures"] == evaluation["not_measured"] == []
    for sentence in evaluation["sentences"]:
        for sound in (sentence[kind] for kind in (ORIGINAL, COPY, SPOKEN)):
            assert soundfile.info(request.out / sound["file"]).duration == pytest.approx(sound["seconds"], abs=1e-3)
    assert json.loads((request.out / "evaluation.json").read_text()) == evaluation
    assert evaluation["judges"]["speakers"] == ["ana", "ben"]
    assert (request.out / "evaluation.html").read_text().count("<audio") == 12


def test_a_clip_that_fails_is_reported_by_its_reason_and_ends_nothing(model, corpus, synthesizer):
    soundfile.write(corpus / "wavs" / "c.wav", np.random.default_rng(9).normal(0, 0.01, 8000), 22050)
    (corpus / "metadata.csv").write_text("audio_file|text|speaker_name\nnone|Nothing.|ana\n" + "\n".join(LINES) + "\n")
    request = make_request(model, corpus)
    material = choose_material(request)
    assert [sentence.name for sentence in material.sentences] == ["wavs/a.wav", "wavs/b.wav", "wavs/d.wav"]
    (corpus / "wavs" / "d.wav").unlink()
    evaluation = evaluate(request, synthesizer, material)
    assert [sentence["name"] for sentence in evaluation["sentences"]] == ["wavs/a.wav", "wavs/b.wav"]
    (failure,) = (each for each in evaluation["failures"] if each["what"] == SENTENCE)
    assert failure["name"] == "wavs/d.wav"
    assert "there is no such file" in failure["reason"]
    assert evaluation["summary"]["failed"] == 1
    dropped = evaluation["set_aside"]["dropped"]
    assert (dropped["missing"][0]["file"], dropped["too_short"][0]["file"]) == ("none", "wavs/c.wav")


def test_a_judge_that_fails_costs_its_figures_alone(model, corpus, synthesizer):
    request = make_request(model, corpus, limit=1, settings=SpeechSettings(greedy=True, max_codes=4))
    evaluation = evaluate(request, synthesizer)
    (sentence,) = evaluation["sentences"]
    assert sentence[ORIGINAL]["transcript"] == "hello there"
    assert sentence[SPOKEN]["transcript"] is None
    assert sentence[SPOKEN]["likeness"] is not None
    (failure,) = evaluation["failures"]
    assert (failure["name"], failure["what"]) == ("wavs/a.wav", "transcript of spoken")
    assert "too short for me" in failure["reason"]
    assert evaluation["summary"]["failed"] == 0


def test_without_judges_the_other_figures_are_there_and_the_page_says_what_is_not(model, corpus, synthesizer):
    request = make_request(model, corpus, limit=1, recogniser=JudgeChoice(), speaker_judge=JudgeChoice())
    evaluation = evaluate(request, synthesizer)
    spoken = evaluation["summary"][SPOKEN]
    assert spoken["word_error_rate"] is None
    assert spoken["mel_distance_db"] > 0
    gaps = [gap["what"] for gap in evaluation["not_measured"]]
    assert gaps == ["Word and character error rates", "Whose voice it is"]
    page = (request.out / "evaluation.html").read_text()
    assert "examples/judges/moonshine.py" in page
    assert "--speaker-judge module:function" in page


def test_a_given_voice_is_compared_with_its_own_recording(model, corpus, synthesizer):
    request = make_request(model, corpus, limit=1, references=(corpus / "wavs" / "d.wav",), recogniser=JudgeChoice())
    evaluation = evaluate(request, synthesizer)
    (sentence,) = evaluation["sentences"]
    assert sentence["voice"] == {"kind": "given", "recordings": ["d.wav"]}
    assert sentence[ORIGINAL]["likeness"] is None
    assert sentence[SPOKEN]["likeness"]["own"] is not None
    assert "The voices of recordings and copies" in [gap["what"] for gap in evaluation["not_measured"]]


def test_a_model_without_a_speaker_encoder_is_no_judge_of_voices(model, corpus, synthesizer):
    request = make_request(model, corpus, speaker_judge=JudgeChoice("own"))
    with pytest.raises(EvaluationError, match="speaker encoder"):
        evaluate(request, synthesizer)
    with pytest.raises(EvaluationError, match="no recogniser 'own'"):
        evaluate(make_request(model, corpus, recogniser=JudgeChoice("own")), synthesizer)


def test_not_one_sentence_is_an_error(model, corpus, synthesizer):
    request = make_request(model, corpus)
    material = choose_material(request)
    for path in (corpus / "wavs").iterdir():
        path.unlink()
    with pytest.raises(MachineError, match="Not one of 4 sentences"):
        run_evaluation(request, material, (None, None), synthesizer)

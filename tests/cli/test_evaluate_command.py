"""`myxtts evaluate` from the command line."""

import json

import numpy as np
import pytest
import soundfile

from tests.inference.builders import write_small_model
from tests.support.processes import run_python


def run_command(*words):
    return run_python(["-m", "myxtts.cli.main", *map(str, words)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model from scratch and a corpus of two clips."""
    folder = tmp_path_factory.mktemp("evaluate")
    write_small_model(folder / "model")
    (folder / "corpus" / "wavs").mkdir(parents=True)
    (folder / "corpus" / "metadata.csv").write_text("a|Hello there.\nb|Good day.\n")
    for number, name in enumerate("ab"):
        samples = np.random.default_rng(number).normal(0, 0.1, 22050)
        soundfile.write(folder / "corpus" / "wavs" / f"{name}.wav", samples, 22050)
    (folder / "empty").mkdir()
    (folder / "empty" / "metadata.csv").write_text("a|Hello there.\n")
    return folder


def test_figures_and_page_are_written_and_a_table_is_printed(folder):
    result = run_command(
        "evaluate", "--checkpoint", folder / "model", "--data", folder / "corpus", "--out", folder / "out", "--greedy",
        "--max-codes", 8, "--recogniser-command", "echo hello there {wav}", "--rehearsal",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    for words in ("2 sentences of corpus (all)", "Recording", "Codec alone", "Spoken", "Codes predicted", "Real-time factor", "Not measured: Whose voice it is"):  # fmt: skip
        assert words in result.stdout
    for words in ("... saying 2 sentences again\n", "Device: /CPU:1. Rehearsal: no GPU is used."):
        assert result.stderr.count(words) == 1, words
    written = json.loads((folder / "out" / "evaluation.json").read_text())
    assert written["sentences"][0]["original"]["transcript"].startswith("hello there")
    assert written["settings"]["max_codes"] == 8
    assert (folder / "out" / "evaluation.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"--data": "nowhere"}, "nowhere"),
        ({"--data": "{folder}/empty"}, "no clip can be used"),
        ({"--checkpoint": "nowhere"}, "nowhere"),
        ({"--recogniser": "kaldi"}, "examples/judges/moonshine.py"),
        ({"--speaker-judge-command": "true"}, "without {wav}"),
        ({"--limit": "-1"}, "--limit must be 0"),
        ({"--out": "{folder}/corpus/metadata.csv"}, "must be a folder, or a place for one"),
        ({"--split": "test"}, "--split"),
        ({"--reference": "nowhere.wav"}, "nowhere.wav"),
        ({"--other-voices": "{folder}/corpus/wavs"}, "--other-voices"),
        ({"--temperature": "0"}, "temperature must be"),
    ],
)
def test_bad_input_is_one_message_before_a_model_is_loaded(folder, flags, message, refuse):
    words = {"--checkpoint": folder / "model", "--data": folder / "corpus", "--out": folder / "none"}
    given = [str(word).replace("{folder}", str(folder)) for pair in {**words, **flags}.items() for word in pair]
    assert message in refuse("evaluate", *given)
    assert not (folder / "none").exists()

"""`myxtts data-prepare`: what it refuses, and what it tells. That its codes are a run's: tests/training, tests/pipeline."""

from pathlib import Path

import numpy as np
import pytest

from myxtts.cli.data_prepare import format_prepared_codes
from myxtts.cli.main import main
from myxtts.data.drops import Drop, DropReason, DropReport
from myxtts.pipeline.recipe import ClipPart


def refuse(capsys, *words):
    """What is said of words that are refused."""
    assert main(["data-prepare", *words]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    "part", ["5/4", "0/4", "x", "1", "1/0", "-1/4", "1/4/4", "1/10000", "٢/٤", "99999999999/99999999999", ""]
)
def test_a_part_that_is_none_is_refused(part, capsys):
    said = refuse(capsys, "--codec", "runs/codec", f"--part={part}")
    assert f"from 1/4 to 4/4, and of 9999 parts at most. It is {part!r}." in " ".join(said.split())


@pytest.mark.parametrize("flag", ["--train-data", "--codec"])
def test_what_is_not_there_is_said(flag, tmp_path, capsys):
    assert "nothere" in refuse(capsys, "--codec", "runs/codec", flag, str(tmp_path / "nothere"))


def test_without_a_codec_there_is_nothing_to_make(capsys):
    assert "give --codec DIR" in refuse(capsys, "--part", "1/2")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--cache", "off"], "but --cache is off. Give --cache disk"),
        (["--cache", "memory"], "but --cache is memory. Give --cache disk"),
        (["--stage", "codec"], "but --stage is codec"),
        (["--set", "data.augment_gain_db=3"], "makes other codes every time, so a run with these settings keeps none."),
    ],
)
def test_codes_that_no_run_would_read_are_not_made(words, text, capsys):
    assert text in " ".join(refuse(capsys, "--codec", "runs/codec", *words).split())


@pytest.mark.parametrize(("name", "text"), [("nowhere", "does not exist"), ("empty", "holds no checkpoints")])
def test_a_folder_that_is_no_codec_is_refused(name, text, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert text in " ".join(refuse(capsys, "--codec", str(tmp_path / name)).split())


def test_a_model_without_codec_is_refused(tmp_path, capsys):
    from myxtts.checkpoints import write_model_directory
    from myxtts.config import XTTSConfig

    norms = {"mel_stats": np.ones(80, np.float32)}
    write_model_directory(tmp_path / "untrained", config=XTTSConfig(model={"size": "tiny"}), model=norms)
    said = refuse(capsys, "--codec", str(tmp_path / "untrained"))
    assert "has no codec (dvae.safetensors). Train one with --stage codec" in " ".join(said.split())


def make_prepared(**changes):
    from myxtts.pipeline.codes import FilledCodes
    from myxtts.training.code_preparation import PreparedCodes

    corpus = Path("corpus")
    drops = [Drop(DropReason.TOO_LONG, "wavs/long.wav", "metadata.csv:3")]
    failed = [Drop(DropReason.CORRUPT, f"wavs/{name}.wav", "making codes", "is torn.") for name in "abcd"]
    values = {
        "filled": FilledCodes(known=3, made=5, failed=failed),
        "clips": 40,
        "report": DropReport(lines=41, kept_seconds=80.0, drops=drops),
        "folder": corpus / ".myxtts" / "features",
        "corpus": corpus,
        "depends_on": {"codec": "abc", "preparing device": "cpu"},
        "unused": None,
    }
    return PreparedCodes(**(values | changes))


def test_the_summary_says_what_was_made_set_aside_and_depended_on():
    said = format_prepared_codes(make_prepared(), ClipPart(2, 4)).splitlines()
    assert said == [
        "Part 2 of 4 has 12 of 40 clips: 5 codes made, 3 were there already.",
        "4 could not be read: wavs/a.wav (corrupt: is torn), wavs/b.wav (corrupt: is torn), wavs/c.wav (corrupt: is torn) and 1 more.",
        "Set aside, and not among them:",
        "reason      clips  files",
        "too_long        1  wavs/long.wav",
        "40 of 41 clips can be used (1.3 min); 1 set aside.",
        "They are in corpus/.myxtts/features",
        "A run finds them there if it has the same:",
        "  codec             abc",
        "  preparing device  cpu",
    ]


def test_the_summary_of_a_whole_corpus_is_short_and_warns_of_a_folder_of_this_machine():
    from myxtts.pipeline.codes import FilledCodes

    prepared = make_prepared(
        filled=FilledCodes(made=40),
        report=DropReport(lines=40, kept_seconds=80.0),
        folder=Path("cache/features"),
        unused="The 3 codes in there cannot be used.",
    )
    said = format_prepared_codes(prepared, ClipPart()).splitlines()
    assert said[:4] == [
        "40 clips: 40 codes made, 0 were there already.",
        "The 3 codes in there cannot be used.",
        "They are in cache/features",
        "which is not beside the corpus: other machines find them only if they share it.",
    ]

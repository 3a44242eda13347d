"""`myxtts data-prepare`: what it refuses, and what it tells. That its codes are a run's: tests/training, tests/pipeline."""

from pathlib import Path

import numpy as np
import pytest

from myxtts.checkpoints import write_model_directory
from myxtts.cli.data import format_prepared_codes
from myxtts.config import XTTSConfig
from myxtts.data.drops import Drop, DropReport
from myxtts.errors import DropReason
from myxtts.pipeline.codes import FilledCodes
from myxtts.pipeline.recipe import ClipPart
from myxtts.tuning.code_preparation import PreparedCodes


@pytest.fixture
def said(refuse):
    """What is said of words that are refused."""
    return lambda *words: " ".join(refuse("data-prepare", *words).split())


@pytest.mark.parametrize(
    "part", ["5/4", "0/4", "x", "1", "1/0", "-1/4", "1/4/4", "1/10000", "٢/٤", "99999999999/99999999999", ""]
)
def test_a_part_that_is_none_is_refused(part, said):
    assert f"from 1/4 to 4/4, and of 9999 parts at most. It is {part!r}." in said("--codec", "c", f"--part={part}")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--part", "1/2"], "give --codec DIR"),
        (["--codec", "x", "--train-data", "nothere"], "nothere"),
        (["--codec", "nothere"], "nothere: does not exist"),
        (["--codec", "."], "holds no checkpoints"),
        (["--codec", "x", "--cache", "off"], "but --cache is off. Give --cache disk"),
        (["--codec", "x", "--cache", "memory"], "but --cache is memory. Give --cache disk"),
        (["--codec", "x", "--stage", "codec"], "but --stage is codec"),
        (["--codec", "x", "--set", "data.augment_gain_db=3"], "so a run with these settings keeps none."),
    ],
)
def test_what_cannot_be_made_or_no_run_would_read_is_refused(words, text, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert text in said(*words)


def test_a_model_without_codec_is_refused(tmp_path, said):
    norms = {"mel_stats": np.ones(80, np.float32)}
    write_model_directory(tmp_path / "untrained", config=XTTSConfig(model={"size": "tiny"}), model=norms)
    assert "has no codec (dvae.safetensors). Train one with --stage codec" in said("--codec", tmp_path / "untrained")


def test_the_summary_says_what_was_made_set_aside_and_depended_on_and_warns_of_a_folder_of_this_machine():
    drops = [Drop(DropReason.TOO_LONG, "wavs/long.wav", "metadata.csv:3")]
    failed = [Drop(DropReason.CORRUPT, f"{name}.wav", "making codes", "is torn.") for name in "abcd"]
    prepared = PreparedCodes(
        filled=FilledCodes(known=3, made=5, failed=failed),
        clips=40,
        report=DropReport(lines=41, kept_seconds=80.0, drops=drops),
        folder=Path("cache/features"),
        corpus=Path("corpus"),
        depends_on={"codec": "abc", "preparing device": "cpu"},
        unused="The 3 codes in there cannot be used.",
    )
    assert format_prepared_codes(prepared, ClipPart(2, 4)).splitlines() == [
        "Part 2 of 4 has 12 of 40 clips: 5 codes made, 3 were there already.",
        "4 could not be read: a.wav (corrupt: is torn), b.wav (corrupt: is torn), c.wav (corrupt: is torn) and 1 more.",
        "Set aside, and not among them:",
        *prepared.report.format_table().splitlines(),
        "The 3 codes in there cannot be used.",
        "They are in cache/features",
        "which is not beside the corpus: other machines find them only if they share it.",
        "A run finds them there if it has the same:",
        "  codec             abc",
        "  preparing device  cpu",
    ]

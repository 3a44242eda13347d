"""`myxtts data`: what is in a corpus, in the terminal, as a page and as facts."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import soundfile

from myxtts.cli.main import main
from myxtts.config import XTTSConfig
from myxtts.data.run_data import collect_run_data
from tests.data.runs import write_corpus
from tests.support.processes import run_python


def run_data(*flags):
    return run_python(["-m", "myxtts.cli.main", "data", *flags])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Three usable clips of two speakers, one silent, one missing, and a file name that HTML could stumble over."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "wavs").mkdir()
    names = {"a": 1.0, "b": 2.0, "c & <d>": 3.0}
    for name, seconds in names.items():
        tone = 0.3 * np.sin(np.arange(int(seconds * 22050)) * 0.05)
        soundfile.write(folder / "wavs" / f"{name}.wav", tone, 22050)
    soundfile.write(folder / "wavs" / "silent & <b>.wav", np.zeros(22050), 22050)
    lines = [
        "audio_file|text|speaker_name",
        "wavs/a.wav|one|anna",
        "wavs/b.wav|two words|anna",
        "wavs/c & <d>.wav|three|ben",
    ]
    lines += ["wavs/silent & <b>.wav|hush|ben", "wavs/gone.wav|nothing|ben"]
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_the_table_the_page_and_the_facts_show_durations_speakers_drops_and_padding(corpus, tmp_path):
    page, facts = tmp_path / "corpus.html", tmp_path / "corpus.json"
    result = run_data("--train-data", str(corpus), "--batch-size", "2", "--html", str(page), "--json", str(facts))
    assert result.returncode == 0, result.stderr
    assert "3 of 5 clips can be used" in result.stdout
    assert "Durations: 1.00 to 3.00 s, median 2.00 s" in result.stdout
    assert any(line.split() == ["anna", "2", "0.1"] for line in result.stdout.splitlines())
    assert "silent" in result.stdout
    assert "missing" in result.stdout
    assert "audio padding" in result.stdout
    assert (result.stdout + result.stderr).count("clips can be used") == 1
    assert "silent &amp; &lt;b&gt;.wav" in page.read_text()
    assert page.read_text().count("<rect") == 3, "a bar for each length that occurs"
    report = json.loads(facts.read_text())
    assert report["clips"] == 3
    assert [drop["file"] for drop in report["report"]["dropped"]["missing"]] == ["wavs/gone.wav"]


def test_the_corpus_is_left_as_it_is_and_the_place_of_what_is_kept_is_told(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "link").symlink_to(corpus)
    before = sorted(corpus.rglob("*"))
    assert main(["data", "--train-data", str(tmp_path / "link"), "--num-workers", "0"]) == 0
    assert sorted(corpus.rglob("*")) == before
    (folder,) = (tmp_path / "cache" / "myxtts" / "corpora").iterdir()
    assert f"Kept    {folder} (" in capsys.readouterr().out
    assert list(folder.glob("clips-*.rows"))


@pytest.mark.parametrize("batch_size", [2, 64])
@pytest.mark.parametrize("has_validation", [False, True])
def test_shapes_and_batches_are_those_of_the_run(corpus, tmp_path, has_validation, batch_size):
    lengths = [0.6, 0.7, 0.9, 1.0, 1.1, 1.3, 1.6, 2.0, 2.4, 2.9, 3.1, 3.6]
    train = write_corpus(tmp_path / "train", lengths)
    facts = tmp_path / "facts.json"
    sections = {"train_data": str(train), "batch_size": batch_size, "num_workers": 0}
    sections |= {"val_data": str(corpus)} if has_validation else {}
    words = [word for name, value in sections.items() for word in ("--set", f"data.{name}={value}")]
    assert main(["data", *words, "--json", str(facts)]) == 0
    run = collect_run_data(XTTSConfig(data=sections), folder=tmp_path / "run")
    told = json.loads(facts.read_text())
    assert told["plan"] == [asdict(bucket) for bucket in run.sampler.plan.buckets]
    (own,) = (row for row in told["bucketings"] if row["batch_size"] == min(batch_size, len(run.train)))
    assert (own["batches"], told["train_clips"]) == (run.sampler.plan.batches_per_epoch, len(run.train))


def test_links_are_followed_unless_that_is_refused(corpus, tmp_path, capsys, refuse):
    (tmp_path / "wavs").symlink_to(corpus / "wavs")
    (tmp_path / "metadata.csv").write_text("a|one\nb|two words\n")
    words = ["data", "--train-data", str(tmp_path), "--num-workers", "0"]
    assert main(words) == 0
    assert "2 of 2 clips can be used" in capsys.readouterr().out
    assert "symlink" in refuse(*words, "--no-follow-symlinks")


def test_limits_come_from_the_settings_and_texts_are_measured_with_the_vocabulary_a_run_would_make(corpus, capsys):
    words = ["data", "--train-data", str(corpus), "--num-workers", "0"]
    assert main([*words, "--max-clip-seconds", "2.5", "--min-clip-seconds", "1.5"]) == 0
    assert "1 of 5 clips can be used" in capsys.readouterr().out
    words.append("--max-text-length")
    assert main([*words, "7"]) == 0
    said = capsys.readouterr().out
    assert "wavs/b.wav (8 tokens)" in said, "of nine characters"
    assert "2 of 5 clips can be used" in said
    assert main([*words, "1"]) == 2
    assert "above 1 tokens (--max-text-length)" in capsys.readouterr().err


def test_validation_clips_are_looked_at_too(corpus, tmp_path, capsys):
    (tmp_path / "wavs").symlink_to(corpus / "wavs")
    (tmp_path / "metadata.csv").write_text("a|one\ngone & <i>|one\n")
    page, facts = tmp_path / "page.html", tmp_path / "facts.json"
    words = ["data", "--train-data", str(corpus), "--num-workers", "0", "--val-data", str(tmp_path)]
    assert main([*words, "--html", str(page), "--json", str(facts)]) == 0
    shown, _, validation = capsys.readouterr().out.partition(f"Validation  {tmp_path}\n")
    assert "3 of 5 clips can be used" in shown
    assert "1 of 2 clips can be used" in validation
    assert "gone &amp; &lt;i&gt;" in page.read_text().partition("<h2>Validation</h2>")[2]
    assert json.loads(facts.read_text())["validation"]["kept"] == 1


def test_without_a_path_the_demo_corpus_is_shown():
    result = run_data()
    assert result.returncode == 0, result.stderr
    assert "59 of 59 clips can be used" in result.stdout
    assert any(line.split()[:2] == ["fa", "8"] for line in result.stdout.splitlines())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--train-data", "no/such/folder"], "no/such/folder"),
        (["--strict"], "--strict allows no clip to be set aside"),
        (["--html", "no/such/folder/page.html"], "cannot be written"),
        (["--batch-sise", "3"], "Did you mean --batch-size?"),
        (["--min-clip-seconds", "12"], "must be below data.max_clip_seconds"),
        (["--vocabulary", "no/such/vocab.json"], "no/such/vocab.json"),
        (["--val-data", "no/such/folder"], "no/such/folder"),
    ],
)
def test_wrong_input_is_one_message_and_exit_code_2(corpus, flags, words, refuse):
    base = [] if "--train-data" in flags else ["--train-data", str(corpus)]
    assert words in refuse("data", "--num-workers", "0", *base, *flags)

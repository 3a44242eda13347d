import shutil
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from myxtts.data.corpus import Corpus
from myxtts.data.drops import Drop, DropReport
from myxtts.data.run_data import SNAPSHOT_NAME, collect_run_data, load_run_data, save_run_data, take_fingerprint
from myxtts.data.sampler import IndexSampler
from myxtts.errors import DropReason, ReadingError
from myxtts.text.tokenizer import Tokenizer
from tests.data.reading import VOCABULARY
from tests.data.runs import make_config, write_corpus
from tests.data.shared import make_clips
from tests.support.processes import run_code

LENGTHS = [0.6, 0.7, 0.9, 1.0, 1.1, 1.3, 1.6, 2.0, 2.4, 2.9]


@pytest.fixture
def corpus(tmp_path) -> Path:
    return write_corpus(tmp_path / "corpus", LENGTHS)


def list_names(corpus: Corpus) -> list[str]:
    return list(corpus.audio)


def list_batches(sampler: IndexSampler, steps: int) -> list[list[list[int]]]:
    return [[m.clips.tolist() for m in sampler.make_batch(step).micro_batches] for step in range(steps)]


def test_training_and_validation_are_ready_to_be_read(corpus, tmp_path):
    data = collect_run_data(
        make_config(corpus, training={"gradient_accumulation_steps": 2, "seed": 5}), folder=tmp_path
    )
    assert sorted(list_names(data.train) + list_names(data.validation)) == [f"wavs/{n}.wav" for n in range(10)]
    assert len(data.validation) == 1
    assert (data.sampler.seed, data.sampler.accumulation) == (5, 2)
    assert (data.validation_sampler.seed, data.validation_sampler.accumulation) == (5, 1)
    assert data.sampler.plan.buckets == data.validation_sampler.plan.buckets
    assert data.validation_batches == 1
    assert data.validation_sampler.make_batch(0).clips.tolist() == [0]
    assert data.report.lines == 10
    tokenizer = Tokenizer(data.tokenizer_path)
    numbers = (tokenizer.text_tokens, tokenizer.start_id, tokenizer.stop_id)
    assert (data.text_tokens, data.start_text_token, data.stop_text_token) == numbers
    assert data.validation.ids[0].tolist() == tokenizer.encode(data.validation.text[0], "en")
    assert data.fingerprint == take_fingerprint(
        data.train, data.sampler, validation=data.validation, vocabulary=data.tokenizer_path
    )


def test_the_same_run_is_the_same_from_anywhere(corpus, tmp_path, monkeypatch):
    here = collect_run_data(make_config(corpus), folder=tmp_path / "a")
    monkeypatch.chdir(corpus.parent)
    there = collect_run_data(make_config(Path(corpus.name)), folder=Path("b"))
    assert there.train.root == here.train.root == corpus
    assert there.tokenizer_path == tmp_path / "b" / "vocab.json"
    assert there.fingerprint == here.fingerprint
    assert list_batches(there.sampler, 9) == list_batches(here.sampler, 9)


def test_validation_clips_may_be_longer_than_any_training_clip(corpus, tmp_path):
    validation = write_corpus(tmp_path / "validation", [0.8, 7.0, 0.2])
    data = collect_run_data(make_config(corpus, val_data=str(validation)), folder=tmp_path)
    assert data.sampler.plan.buckets == data.validation_sampler.plan.buckets
    assert data.sampler.plan.buckets[-1].samples >= 7 * 22050
    assert data.sampler.plan.batches_of_bucket[-1] == 0, "no training batch is padded to a validation clip"
    rounds = [data.validation_sampler.make_batch(step).clips.tolist() for step in range(data.validation_batches)]
    assert sorted(clip for clips in rounds for clip in clips) == [0, 1]
    assert (len(data.train), data.report.lines, data.report.drops[0].reason) == (10, 13, DropReason.TOO_SHORT)
    assert data.report.kept_seconds == pytest.approx(sum(LENGTHS) + 7.8, abs=0.01)


def test_a_batch_may_be_larger_than_the_corpus(corpus, tmp_path, caplog):
    data = collect_run_data(make_config(corpus, batch_size=100), folder=tmp_path)
    assert data.sampler.make_batch(0).micro_batches[0].bucket.rows <= 9
    assert "--batch-size 100 is more than the 9 clips there are to train on: a batch holds 9." in caplog.text


def test_validation_clips_that_are_trained_on_are_pointed_out(corpus, tmp_path, caplog):
    collect_run_data(make_config(corpus, val_data=str(corpus)), folder=tmp_path)
    assert "10 of 10 validation clips are trained on as well, such as wavs/0.wav" in caplog.text


def test_a_given_vocabulary_comes_before_that_of_a_checkpoint(corpus, tmp_path):
    of_checkpoint, given = tmp_path / "of_checkpoint.json", tmp_path / "given.json"
    shutil.copy(VOCABULARY, of_checkpoint)
    shutil.copy(VOCABULARY, given)
    config = make_config(corpus)
    fine_tuned = collect_run_data(config, folder=tmp_path, vocabulary=of_checkpoint)
    chosen = collect_run_data(make_config(corpus, vocabulary=str(given)), folder=tmp_path, vocabulary=of_checkpoint)
    assert fine_tuned.tokenizer_path == of_checkpoint
    assert chosen.tokenizer_path == given
    assert not (tmp_path / "vocab.json").exists()


def assert_same(one: object, other: object, path: str = "") -> None:
    """Every value of two objects is the same, to the type of every column."""
    if isinstance(one, np.ndarray):
        assert isinstance(other, np.ndarray), path
        assert one.dtype == other.dtype, path
        assert np.array_equal(one, other), path
    elif is_dataclass(one):
        for field in fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name), f"{path}.{field.name}")
    else:
        assert type(one) is type(other), path
        assert one == other, path


def test_a_snapshot_gives_back_everything_exactly(corpus, tmp_path):
    training = {"seed": 2**63 - 1, "gradient_accumulation_steps": 3}
    data = replace(
        collect_run_data(make_config(corpus, training=training), folder=tmp_path),
        # Names that are no UTF-8 are among them.
        validation=make_clips(
            tmp_path / "\udce9", ["\udcfe.wav", "b.wav"], text=["این متن", ""], speaker=["\udcff", "…"]
        ),
        report=DropReport(
            lines=3,
            kept_seconds=0.1,
            drops=(Drop(DropReason.NAN, "\udcfd.wav", "metadata.csv, line 1", "…"),),
            replaced=[Drop(DropReason.CHANGED, "wavs/1.wav", "step 3, row 1", "")],
        ),
    )
    save_run_data(data, tmp_path)
    loaded = load_run_data(tmp_path)
    assert_same(loaded, data)
    assert list_batches(loaded.sampler, 9) == list_batches(data.sampler, 9)
    assert [path.name for path in tmp_path.iterdir() if "tmp" in path.name] == []


def test_loading_needs_neither_tensorflow_nor_the_clips(corpus, tmp_path):
    data = collect_run_data(make_config(corpus), folder=tmp_path)
    save_run_data(data, tmp_path)
    shutil.rmtree(corpus)
    code = f"""
from pathlib import Path
from myxtts.data.run_data import load_run_data
data = load_run_data(Path({str(tmp_path)!r}))
report([len(data.train), data.fingerprint.names, "tensorflow" in sys.modules])
"""
    assert run_code(code) == [9, data.fingerprint.names, False]


def test_a_snapshot_that_is_absent_torn_or_foreign_is_refused(corpus, tmp_path):
    path = tmp_path / SNAPSHOT_NAME
    with pytest.raises(ReadingError, match=r"There is no .*the trainer writes it"):
        load_run_data(tmp_path)
    save_run_data(collect_run_data(make_config(corpus), folder=tmp_path), tmp_path)
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], b"", content[:900] + b"~" * 20 + content[920:], b"not an archive"):
        path.write_bytes(damaged)
        with pytest.raises(ReadingError, match="cannot be read"):
            load_run_data(tmp_path)
    np.savez(path, facts=np.frombuffer(b'{"train": {}}', np.uint8))
    with pytest.raises(ReadingError, match="cannot be read"):
        load_run_data(tmp_path)


def test_the_table_has_a_line_per_reason_the_sum_and_what_was_replaced_during_training():
    drops = [Drop(DropReason.SILENT, f"s{i}.wav", f"m.csv, line {i}") for i in range(5)]
    drops.append(Drop(DropReason.MISSING, "m.wav", "m.csv, line 9"))
    drops.append(Drop(DropReason.TOO_LONG, "l.wav", "m.csv, line 10", "12.00 s"))
    report = DropReport(lines=10, kept_seconds=5400, drops=drops)
    report.replaced.append(Drop(DropReason.CORRUPT, "x.wav", "step 7, row 3", "replaced by y.wav"))
    assert report.format_table().splitlines() == [
        "reason      clips  files",
        "missing         1  m.wav",
        "silent          5  s0.wav, s1.wav, s2.wav and 2 more",
        "too_long        1  l.wav (12.00 s)",
        "missing: clips must be files beside the metadata file, or in wavs/ beside it.",
        "3 of 10 clips can be used (1.5 h); 7 set aside.",
        "1 replaced during training: x.wav (replaced by y.wav)",
    ]
    replaced = {"reason": "corrupt", "file": "x.wav", "where": "step 7, row 3", "detail": "replaced by y.wav"}
    assert report.to_json()["replaced"] == [replaced]

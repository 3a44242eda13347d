"""Everything a run reads: its clips, their texts and their batches, made once and the same in every process."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from myxtts.config import XTTSConfig
from myxtts.data.buckets import BucketPlan, plan_shared_buckets
from myxtts.data.checks import make_vocabulary_task
from myxtts.data.corpus import Corpus
from myxtts.data.drops import DropReport
from myxtts.data.errors import SnapshotError
from myxtts.data.facts import Progress
from myxtts.data.index import choose_index_folder
from myxtts.data.resume import Fingerprint, take_fingerprint
from myxtts.data.sampler import IndexSampler
from myxtts.data.scan_choice import choose_workers, scan_train_data, scan_val_data
from myxtts.data.snapshot import (
    Columns,
    Facts,
    pack_corpus,
    pack_plan,
    pack_report,
    read_snapshot,
    unpack_corpus,
    unpack_plan,
    unpack_report,
    write_snapshot,
)
from myxtts.data.split import split_corpus
from myxtts.data.text_ids import TextIds, collect_text_ids
from myxtts.data.text_measure import TextMeasure
from myxtts.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

SNAPSHOT_NAME = "run_data.npz"
_VERSION = 1
_TRAIN, _VALIDATION = "train", "validation"


@dataclass(frozen=True, eq=False)
class RunData:
    """What a run trains on and validates with. Both samplers have the same buckets."""

    train: Corpus
    validation: Corpus
    """May be empty: then there is no sampler for it."""
    train_ids: TextIds
    validation_ids: TextIds
    sampler: IndexSampler
    validation_sampler: IndexSampler | None
    """Its epoch 0, in order, is a round of validation: every clip once, one micro-batch a step."""
    tokenizer_path: Path
    """The vocabulary in force."""
    text_tokens: int
    start_text_token: int
    stop_text_token: int
    report: DropReport
    """What was set aside from both sets."""
    fingerprint: Fingerprint

    @property
    def validation_batches(self) -> int:
        """Batches of a validation round."""
        return self.validation_sampler.plan.batches_per_epoch if self.validation_sampler else 0


def collect_run_data(
    config: XTTSConfig, *, folder: Path, vocabulary: Path | None = None, progress: Progress | None = None
) -> RunData:
    """What a configuration's run reads. Logs what is set aside, what is set apart, and the vocabulary.

    Args:
        folder: the run's folder. Where neither the configuration nor a checkpoint has a vocabulary, one is made from the
            corpus and kept there as `vocab.json`; a resumed run finds it there.
        vocabulary: that of the checkpoint that is fine-tuned.
        progress: called now and then while clips and texts are looked at.
    """
    texts = TextMeasure(config, folder, vocabulary)
    scan = scan_train_data(config, texts.choose_task, progress)
    tokenizer = Tokenizer(texts.vocabulary)
    found = _tokenise(config, scan.corpus, tokenizer, progress)
    if config.data.val_data:
        other = scan_val_data(config, make_vocabulary_task(texts.vocabulary), progress)
        train, validation = found, _tokenise(config, other.corpus, tokenizer, progress)
        report = _join_reports(scan.drops, other.drops)
        _warn_of_overlap(train.corpus, validation.corpus)
    else:
        split = split_corpus(found.corpus, config.training.seed)
        train, validation = (
            _Part(found.corpus.take(clips), found.ids.take(clips)) for clips in (split.train, split.validation)
        )
        report = scan.drops
    _warn_of_large_batch(config.data.batch_size, len(train.corpus))
    parts = [(part.corpus.samples, part.corpus.tokens) for part in (train, validation) if len(part.corpus)]
    plans = plan_shared_buckets(parts, batch_size=config.data.batch_size)
    seed = config.training.seed
    sampler = IndexSampler(plans[0], seed=seed, accumulation=config.training.gradient_accumulation_steps)
    return RunData(
        train=train.corpus,
        validation=validation.corpus,
        train_ids=train.ids,
        validation_ids=validation.ids,
        sampler=sampler,
        validation_sampler=IndexSampler(plans[1], seed=seed) if len(plans) > 1 else None,
        tokenizer_path=tokenizer.path,
        text_tokens=tokenizer.text_tokens,
        start_text_token=tokenizer.start_id,
        stop_text_token=tokenizer.stop_id,
        report=report,
        fingerprint=take_fingerprint(train.corpus, sampler, validation=validation.corpus, vocabulary=tokenizer.path),
    )


@dataclass(frozen=True, eq=False)
class _Part:
    corpus: Corpus
    ids: TextIds


def _tokenise(config: XTTSConfig, corpus: Corpus, tokenizer: Tokenizer, progress: Progress | None) -> _Part:
    ids = collect_text_ids(
        corpus,
        tokenizer.path,
        workers=choose_workers(config),
        folder=choose_index_folder(corpus.root),
        progress=progress,
    )
    # Absolute: the processes of a run need not work in the folder it was started in.
    return _Part(replace(corpus, root=corpus.root.absolute()), ids)


def _warn_of_large_batch(asked: int, clips: int) -> None:
    if asked > clips:
        _log.warning(
            "--batch-size %d is more than the %d clips there are to train on: a batch holds %d.", asked, clips, clips
        )


def _join_reports(train: DropReport, validation: DropReport) -> DropReport:
    return DropReport(
        lines=train.lines + validation.lines,
        kept_seconds=train.kept_seconds + validation.kept_seconds,
        drops=(*train.drops, *validation.drops),
    )


def _warn_of_overlap(train: Corpus, validation: Corpus) -> None:
    root, other_root = train.root.resolve(), validation.root.resolve()
    known = {f"{root}/{name}" for name in train.audio}
    both = [name for name in validation.audio if f"{other_root}/{name}" in known]
    if both:
        _log.warning(
            "%d of %d validation clips are trained on as well, such as %s: the validation loss says little about other speech.",
            len(both),
            len(validation),
            both[0],
        )


def save_run_data(data: RunData, folder: Path) -> None:
    """Write a snapshot for `load_run_data` into the run's folder, replacing an older one in one step."""
    columns: Columns = {}
    facts: Facts = {
        "version": _VERSION,
        "seed": data.sampler.seed,
        "accumulation": data.sampler.accumulation,
        "vocabulary": str(data.tokenizer_path),
        "text_tokens": data.text_tokens,
        "start_text_token": data.start_text_token,
        "stop_text_token": data.stop_text_token,
        "report": pack_report(data.report),
        "fingerprint": asdict(data.fingerprint),
    }
    for name, corpus, ids, sampler in (
        (_TRAIN, data.train, data.train_ids, data.sampler),
        (_VALIDATION, data.validation, data.validation_ids, data.validation_sampler),
    ):
        packed = [pack_corpus(corpus, ids), *([pack_plan(sampler.plan)] if sampler else [])]
        facts[name] = {key: value for _, part in packed for key, value in part.items()}
        columns |= {f"{name}.{key}": column for part, _ in packed for key, column in part.items()}
    write_snapshot(folder / SNAPSHOT_NAME, columns, facts)


def load_run_data(folder: Path) -> RunData:
    """The run data that was saved in a folder, without looking at any clip."""
    path = folder / SNAPSHOT_NAME
    columns, facts = read_snapshot(path)
    if facts.get("version") != _VERSION:
        raise SnapshotError(
            f"{path} must have version {_VERSION}, but has {facts.get('version')}: another MyXTTS wrote it. Start the trainer "
            "again, which writes it anew."
        )
    train, train_ids, plan = _unpack_part(columns, facts, _TRAIN)
    validation, validation_ids, validation_plan = _unpack_part(columns, facts, _VALIDATION)
    assert plan is not None
    return RunData(
        train=train,
        validation=validation,
        train_ids=train_ids,
        validation_ids=validation_ids,
        sampler=IndexSampler(plan, seed=facts["seed"], accumulation=facts["accumulation"]),
        validation_sampler=IndexSampler(validation_plan, seed=facts["seed"]) if validation_plan else None,
        tokenizer_path=Path(facts["vocabulary"]),
        text_tokens=facts["text_tokens"],
        start_text_token=facts["start_text_token"],
        stop_text_token=facts["stop_text_token"],
        report=unpack_report(facts["report"]),
        fingerprint=Fingerprint(**facts["fingerprint"]),
    )


def _unpack_part(
    columns: Mapping[str, NDArray[Any]], facts: Facts, name: str
) -> tuple[Corpus, TextIds, BucketPlan | None]:
    own = {key.removeprefix(f"{name}."): column for key, column in columns.items() if key.startswith(f"{name}.")}
    corpus, ids = unpack_corpus(own, facts[name])
    return corpus, ids, unpack_plan(own, facts[name]) if "buckets" in facts[name] else None

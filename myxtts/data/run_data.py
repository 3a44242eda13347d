"""Everything a run reads: its clips, their texts and their batches, made once and the same in every process."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from myxtts.config import XTTSConfig
from myxtts.data.buckets import plan_shared_buckets
from myxtts.data.corpus import Corpus, Progress, read_snapshot, write_snapshot
from myxtts.data.drops import DropReport
from myxtts.data.index import choose_index_folder
from myxtts.data.resume import Fingerprint, take_fingerprint
from myxtts.data.sampler import IndexSampler
from myxtts.data.scan import choose_workers, make_vocabulary_task, scan_train_data, scan_val_data
from myxtts.data.split import split_corpus
from myxtts.data.text_ids import TextIds, collect_text_ids
from myxtts.data.text_measure import TextMeasure
from myxtts.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

SNAPSHOT_NAME = "run_data.npz"


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
    write_snapshot(folder / SNAPSHOT_NAME, data)


def load_run_data(folder: Path) -> RunData:
    """The run data that was saved in a folder, without looking at any clip."""
    return read_snapshot(folder / SNAPSHOT_NAME, RunData)

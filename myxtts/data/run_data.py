"""Everything a run reads: its clips, their texts and their batches, made once and the same in every process."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from myxtts.config import XTTSConfig
from myxtts.data.buckets import plan_shared_buckets
from myxtts.data.corpus import Corpus, Progress, digest_parts, read_snapshot, write_snapshot
from myxtts.data.drops import DropReport
from myxtts.data.sampler import Failure, IndexSampler, ReplacementJournal
from myxtts.data.scan import scan_data
from myxtts.data.texts import choose_vocabulary
from myxtts.errors import CorpusError
from myxtts.files import read_bytes
from myxtts.hashing import digest64, hash_words
from myxtts.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)


VALIDATION_SHARE = 0.02
FEW_VALIDATION_CLIPS = 4
"""Set apart from a small corpus, but no more than a tenth of it: the loss of a single clip is mostly chance."""
MOST_VALIDATION_CLIPS = 512
"""More tell nothing new about the loss, and every validation pays for them."""

_SPLIT = 101
"""Sets these hashes apart from others with the same seed."""


def split_corpus(corpus: Corpus, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The clips to train on, and some set apart for validation, which the log says; of a single one, none.

    Which ones follows from the seed and the clips' paths, whatever the order of the metadata's lines.
    """
    clips = len(corpus)
    few = min(FEW_VALIDATION_CLIPS, clips // 10)
    count = max(0, min(max(1, few, round(clips * VALIDATION_SHARE)), MOST_VALIDATION_CLIPS, clips - 1))
    keys = np.fromiter(map(digest64, corpus.audio.iter_bytes()), dtype=np.int64, count=len(corpus))
    order = np.lexsort([keys, hash_words(seed, _SPLIT, keys)])
    validation, train = np.sort(order[:count]), np.sort(order[count:])
    _log.info(
        "Validation: %d of %d clips (%.1f of %.1f min) are set apart from training, chosen by seed %d%s.",
        *(count, clips, corpus.take(validation).total_seconds / 60, corpus.total_seconds / 60, seed),
        f", such as {corpus.audio[int(validation[0])]}" if count else "",
    )
    return train, validation


_VERSION = 1


@dataclass(frozen=True)
class Fingerprint:
    """What the batches of a run depend on. Kept in parts, so that a difference can be named."""

    clips: int
    seconds: float
    names: str
    lengths: str
    texts: str
    speakers: str
    shapes: str
    accumulation: int
    seed: int
    validation: str
    """Of the validation clips: they share the shapes, and decide what is best and when to stop."""
    vocabulary: str
    validation_speakers: str
    """Prompts may be cut from other clips of the same speaker."""


def take_fingerprint(corpus: Corpus, sampler: IndexSampler, *, validation: Corpus, vocabulary: Path) -> Fingerprint:
    """The fingerprint of a corpus's kept clips, how they are batched, and what they are validated and tokenised with."""
    shapes = [[b.rows, b.samples, b.tokens] for b in sampler.plan.buckets]
    # Speakers are who shares clips with whom, not their names: these may come from a folder that was moved.
    return Fingerprint(
        clips=len(corpus),
        seconds=round(corpus.total_seconds, 3),
        names=digest_parts(*corpus.audio.parts),
        lengths=digest_parts(corpus.samples, corpus.tokens),
        texts=digest_parts(*corpus.text.parts),
        speakers=digest_parts(corpus.speaker.codes, *corpus.language.parts),
        shapes=digest_parts(np.array(shapes, dtype=np.int64)),
        accumulation=sampler.accumulation,
        seed=sampler.seed,
        validation=digest_parts(
            *validation.audio.parts,
            validation.samples,
            validation.tokens,
            *validation.text.parts,
            *validation.language.parts,
        ),
        vocabulary=digest_parts(read_bytes(vocabulary)),
        validation_speakers=digest_parts(validation.speaker.codes),
    )


def save_position(
    step: int, journal: ReplacementJournal, fingerprint: Fingerprint, sampler: IndexSampler
) -> dict[str, Any]:
    """Where a run is, at the next global step, as a small dict of JSON values. Failures behind it are left out."""
    return {
        "version": _VERSION,
        "seed": sampler.seed,
        "epoch": step // sampler.steps_per_epoch,
        "step": step,
        "fingerprint": asdict(fingerprint),
        "failures": [astuple(failure) for failure in journal.list_failures(step)],
    }


def load_failures(state: Mapping[str, Any], fingerprint: Fingerprint) -> ReplacementJournal:
    """The failures ahead of a saved position. Raises `CorpusError`, naming what changed, when it is of another corpus or plan."""
    if state.get("version") != _VERSION:
        raise CorpusError(
            f"The saved position has version {state.get('version')}, but this MyXTTS reads version {_VERSION}. "
            "Resume with the MyXTTS that saved it, or start anew with --reset-training."
        )
    changes = _describe_changes(Fingerprint(**state["fingerprint"]), fingerprint)
    if changes:
        raise CorpusError(
            "The run cannot go on where it stopped, because its batches would be other ones:\n"
            + "\n".join(f"  - {change}" for change in changes)
            + "\nBring back what the run was started with, or start anew with --reset-training."
        )
    return ReplacementJournal(Failure(*entry) for entry in state["failures"])


def _describe_changes(saved: Fingerprint, now: Fingerprint) -> list[str]:
    """What is different, without what follows from something else that is."""
    differ = {name for name, value in asdict(saved).items() if value != asdict(now)[name]}
    changes: list[str] = []
    if "clips" in differ:
        changes.append(
            f"{now.clips} clips ({now.seconds:.1f} s) can be used, but there were {saved.clips} ({saved.seconds:.1f} s)"
        )
        differ -= {"names", "lengths", "texts", "speakers"}
    if "names" in differ:
        changes.append("clips were renamed, exchanged or put in another order")
    elif "lengths" in differ:
        changes.append("clips or texts have other lengths (audio was edited, or the vocabulary is another one)")
    others = {
        "texts": "texts in the metadata were changed",
        "speakers": "speakers or languages in the metadata were changed",
        "seed": f"the seed is {now.seed}, but was {saved.seed}",
        "accumulation": f"--grad-accum is {now.accumulation}, but was {saved.accumulation}",
    }
    changes += [text for name, text in others.items() if name in differ]
    consequences = {
        "vocabulary": "the vocabulary has other tokens",
        "validation": "the validation clips, their lengths or their texts are other ones",
        "validation_speakers": "the speakers of the validation clips were changed",
        "shapes": "the batch size, or the number of ranks it is shared by, is another one",
    }
    return changes or [text for name, text in consequences.items() if name in differ][:1]


SNAPSHOT_NAME = "run_data.npz"


@dataclass(frozen=True, eq=False)
class RunData:
    """What a run trains on and validates with. Both samplers have the same buckets."""

    train: Corpus
    validation: Corpus
    """May be empty: then there is no sampler for it."""
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

    @cached_property
    def speakers(self) -> int:
        """Of the clips that are trained on."""
        return len(np.unique(self.train.speaker.codes))

    @cached_property
    def validation_batches(self) -> int:
        return self.validation_sampler.plan.batches_per_epoch if self.validation_sampler else 0


def collect_run_data(
    config: XTTSConfig, *, folder: Path, vocabulary: Path | None = None, progress: Progress | None = None
) -> RunData:
    """What a configuration's run reads. Logs what is set aside, what is set apart, and the vocabulary.

    Args:
        folder: the run's folder. Where neither the configuration nor a checkpoint has a vocabulary, one is made from the
            corpus and kept there as `vocab.json`; a resumed run finds it there.
        vocabulary: that of the checkpoint that is fine-tuned.
    """
    scan = scan_data(config, "train", choose_vocabulary(config, folder, vocabulary), progress)
    assert scan.vocabulary is not None
    tokenizer = Tokenizer(scan.vocabulary)
    train = _settle(scan.corpus)
    report, seed, batch_size = scan.drops, config.training.seed, config.data.batch_size
    if config.data.val_data:
        other = scan_data(config, "eval", tokenizer.path, progress)
        validation = _settle(other.corpus)
        report = DropReport(
            lines=report.lines + other.drops.lines,
            kept_seconds=report.kept_seconds + other.drops.kept_seconds,
            drops=(*report.drops, *other.drops.drops),
        )
        _warn_of_overlap(train, validation)
    else:
        train, validation = map(train.take, split_corpus(train, seed))
    if batch_size > len(train):
        _log.warning(
            "--batch-size %d is more than the %d clips there are to train on: a batch holds %d.",
            *(batch_size, len(train), len(train)),
        )
    parts = [(part.samples, part.tokens) for part in (train, validation) if len(part)]
    plans = plan_shared_buckets(parts, batch_size=batch_size, layers=config.model.gpt_layers)
    sampler = IndexSampler(
        plans[0],
        seed=seed,
        accumulation=config.training.gradient_accumulation_steps,
    )
    return RunData(
        train=train,
        validation=validation,
        sampler=sampler,
        validation_sampler=IndexSampler(plans[1], seed=seed) if len(plans) > 1 else None,
        tokenizer_path=tokenizer.path,
        text_tokens=tokenizer.text_tokens,
        start_text_token=tokenizer.start_id,
        stop_text_token=tokenizer.stop_id,
        report=report,
        fingerprint=take_fingerprint(train, sampler, validation=validation, vocabulary=tokenizer.path),
    )


def _settle(corpus: Corpus) -> Corpus:
    # Absolute: the processes of a run need not work in the folder it was started in.
    return replace(corpus, root=corpus.root.absolute())


def _warn_of_overlap(train: Corpus, validation: Corpus) -> None:
    root, other_root = train.root.resolve(), validation.root.resolve()
    known = {f"{root}/{name}" for name in train.audio}
    both = [name for name in validation.audio if f"{other_root}/{name}" in known]
    if both:
        _log.warning(
            "%d of %d validation clips are trained on as well, such as %s: the validation loss says little about other speech.",
            *(len(both), len(validation), both[0]),
        )


def save_run_data(data: RunData, folder: Path) -> None:
    write_snapshot(folder / SNAPSHOT_NAME, data)


def load_run_data(folder: Path) -> RunData:
    """The run data that was saved in a folder, without looking at any clip."""
    return read_snapshot(folder / SNAPSHOT_NAME, RunData)

"""Everything a run reads: its clips, their texts and their batches, made once and the same in every process."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from myxtts.config import XTTSConfig
from myxtts.data.buckets import plan_shared_buckets
from myxtts.data.corpus import Corpus, Progress, TextIds, collect_text_ids, digest_parts, read_snapshot, write_snapshot
from myxtts.data.drops import DropReport
from myxtts.data.index import choose_index_folder
from myxtts.data.sampler import Failure, IndexSampler, ReplacementJournal
from myxtts.data.scan import choose_scan_workers, make_vocabulary_task, scan_train_data, scan_val_data
from myxtts.data.task_processes import ProcessTask
from myxtts.errors import CorpusError, UnsupportedLanguageError, VocabularyError
from myxtts.files import WriteError, open_file_atomically, read_bytes, read_text
from myxtts.hashing import digest64, hash_words
from myxtts.text.normalise import resolve_language
from myxtts.text.tokenizer import Tokenizer
from myxtts.text.vocabulary import train_vocabulary

_log = logging.getLogger(__name__)


VALIDATION_SHARE = 0.02
FEW_VALIDATION_CLIPS = 4
"""Set apart from a small corpus, but no more than a tenth of it: the loss of a single clip is mostly chance."""
MOST_VALIDATION_CLIPS = 512
"""More tell nothing new about the loss, and every validation pays for them."""

_SPLIT = 101
"""Sets these hashes apart from others with the same seed."""


@dataclass(frozen=True, eq=False)
class CorpusSplit:
    """Clip numbers of the two parts, each in rising order. A corpus of one clip has nothing to validate on."""

    train: NDArray[np.intp]
    validation: NDArray[np.intp]


def split_corpus(corpus: Corpus, seed: int) -> CorpusSplit:
    """Set some clips apart for validation, and say so in the log.

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
        count,
        len(corpus),
        corpus.take(validation).total_seconds / 60,
        corpus.total_seconds / 60,
        seed,
        f", such as {corpus.audio[int(validation[0])]}" if count else "",
    )
    return CorpusSplit(train, validation)


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


@dataclass(frozen=True, eq=False)
class SamplerPosition:
    """Where a run is: the next global step, and the failures that still lie ahead of it."""

    step: int
    journal: ReplacementJournal


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


def save_position(position: SamplerPosition, fingerprint: Fingerprint, sampler: IndexSampler) -> dict[str, Any]:
    """The position as a small dict of JSON values. Failures behind it are left out: nothing asks for them again."""
    return {
        "version": _VERSION,
        "seed": sampler.seed,
        "epoch": sampler.find_epoch(position.step),
        "step": position.step,
        "fingerprint": asdict(fingerprint),
        "failures": [astuple(failure) for failure in position.journal.list_failures(position.step)],
    }


def load_position(state: Mapping[str, Any], fingerprint: Fingerprint) -> SamplerPosition:
    """The position in a saved dict. Raises `CorpusError`, naming what changed, when it is of another corpus or plan."""
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
    return SamplerPosition(state["step"], ReplacementJournal(Failure(*entry) for entry in state["failures"]))


def _describe_changes(saved: Fingerprint, now: Fingerprint) -> list[str]:
    changes: list[str] = []
    if saved.clips != now.clips:
        changes.append(
            f"{now.clips} clips ({now.seconds:.1f} s) can be used, but there were {saved.clips} ({saved.seconds:.1f} s)"
        )
    elif saved.names != now.names:
        changes.append("clips were renamed, exchanged or put in another order")
    elif saved.lengths != now.lengths:
        changes.append("clips or texts have other lengths (audio was edited, or the vocabulary is another one)")
    if saved.clips == now.clips and saved.texts != now.texts:
        changes.append("texts in the metadata were changed")
    if saved.clips == now.clips and saved.speakers != now.speakers:
        changes.append("speakers or languages in the metadata were changed")
    if saved.seed != now.seed:
        changes.append(f"the seed is {now.seed}, but was {saved.seed}")
    if saved.accumulation != now.accumulation:
        changes.append(f"--grad-accum is {now.accumulation}, but was {saved.accumulation}")
    if not changes and saved.vocabulary != now.vocabulary:
        changes.append("the vocabulary has other tokens")
    if not changes and saved.validation != now.validation:
        changes.append("the validation clips, their lengths or their texts are other ones")
    if not changes and saved.validation_speakers != now.validation_speakers:
        changes.append("the speakers of the validation clips were changed")
    if not changes and saved.shapes != now.shapes:
        changes.append("the batch size, or the number of ranks it is shared by, is another one")
    return changes


SNAPSHOT_NAME = "run_data.npz"

VOCABULARY_NAME = "vocab.json"
_ORIGIN_NAME = "vocab.origin"
"""Says how many texts, and which, the vocabulary beside it was made from."""

LEAST_MERGES = 256
"""For each language, beside its characters: characters alone would make texts too long for the model."""
CHARACTERS_PER_MERGE = 500
"""More merges than the texts have multiples of this would make tokens too rare to be learnt."""


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
    train, train_ids = _tokenise(config, scan.corpus, tokenizer, progress)
    report, seed, batch_size = scan.drops, config.training.seed, config.data.batch_size
    if config.data.val_data:
        other = scan_val_data(config, make_vocabulary_task(texts.vocabulary), progress)
        validation, validation_ids = _tokenise(config, other.corpus, tokenizer, progress)
        report = DropReport(
            lines=report.lines + other.drops.lines,
            kept_seconds=report.kept_seconds + other.drops.kept_seconds,
            drops=(*report.drops, *other.drops.drops),
        )
        _warn_of_overlap(train, validation)
    else:
        split = split_corpus(train, seed)
        validation, validation_ids = train.take(split.validation), train_ids.take(split.validation)
        train, train_ids = train.take(split.train), train_ids.take(split.train)
    if batch_size > len(train):
        _log.warning(
            "--batch-size %d is more than the %d clips there are to train on: a batch holds %d.",
            *(batch_size, len(train), len(train)),
        )
    parts = [(part.samples, part.tokens) for part in (train, validation) if len(part)]
    plans = plan_shared_buckets(parts, batch_size=batch_size)
    sampler = IndexSampler(plans[0], seed=seed, accumulation=config.training.gradient_accumulation_steps)
    return RunData(
        train=train,
        validation=validation,
        train_ids=train_ids,
        validation_ids=validation_ids,
        sampler=sampler,
        validation_sampler=IndexSampler(plans[1], seed=seed) if len(plans) > 1 else None,
        tokenizer_path=tokenizer.path,
        text_tokens=tokenizer.text_tokens,
        start_text_token=tokenizer.start_id,
        stop_text_token=tokenizer.stop_id,
        report=report,
        fingerprint=take_fingerprint(train, sampler, validation=validation, vocabulary=tokenizer.path),
    )


def _tokenise(
    config: XTTSConfig, corpus: Corpus, tokenizer: Tokenizer, progress: Progress | None
) -> tuple[Corpus, TextIds]:
    workers, folder = choose_scan_workers(config), choose_index_folder(corpus.root)
    ids = collect_text_ids(corpus, tokenizer.path, workers=workers, folder=folder, progress=progress)
    # Absolute: the processes of a run need not work in the folder it was started in.
    return replace(corpus, root=corpus.root.absolute()), ids


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
    """Write a snapshot for `load_run_data` into the run's folder."""
    write_snapshot(folder / SNAPSHOT_NAME, data)


def load_run_data(folder: Path) -> RunData:
    """The run data that was saved in a folder, without looking at any clip."""
    return read_snapshot(folder / SNAPSHOT_NAME, RunData)


class TextMeasure:
    """Decides about the vocabulary as soon as the clips are known, and remembers it.

    Args:
        config: may name a vocabulary.
        folder: of the run; where there is no vocabulary, one is made from the corpus and kept there.
        of_checkpoint: the vocabulary of the model that is fine-tuned.
    """

    def __init__(self, config: XTTSConfig, folder: Path, of_checkpoint: Path | None):
        given = Path(config.data.vocabulary) if config.data.vocabulary else of_checkpoint
        self._given = given.absolute() if given else None
        self._folder = folder.absolute()
        self._most_tokens = config.model.text_tokens
        self._chosen: Path | None = None

    @property
    def vocabulary(self) -> Path:
        """The vocabulary in force."""
        assert self._chosen is not None, "a scan has found clips"
        return self._chosen

    def choose_task(self, corpus: Corpus) -> ProcessTask:
        """How the texts of clips are measured; see `scan.TextTaskMaker`."""
        self._chosen = self._given or keep_vocabulary(corpus, self._folder, most_tokens=self._most_tokens)
        return make_vocabulary_task(self._chosen)


def make_vocabulary(corpus: Corpus, path: Path, *, most_tokens: int) -> Tokenizer:
    """A new vocabulary from the texts of a corpus, saved at `path`. The same texts give the same file.

    It has at most so many tokens, fewer where the texts do not support them. Languages nobody can clean are left out.
    """
    texts = group_texts(corpus)
    characters: set[str] = set()
    running = 0
    for text in (text for group in texts.values() for text in group):
        characters.update(text.lower())
        running += len(text)
    wanted = len(characters) + max(LEAST_MERGES * len(texts), running // CHARACTERS_PER_MERGE)
    tokenizer = train_vocabulary(texts, path, text_tokens=min(most_tokens, wanted))
    _log.info(
        "Vocabulary: %d tokens for %s, made from %d texts, in %s.",
        tokenizer.text_tokens,
        ", ".join(tokenizer.languages),
        sum(map(len, texts.values())),
        path,
    )
    return tokenizer


def keep_vocabulary(corpus: Corpus, folder: Path, *, most_tokens: int) -> Path:
    """The vocabulary of the run in a folder: the one that is there, or one made now from the corpus.

    Raises `CorpusError` when the one that is there was made from other texts. It is never made anew: a run's weights
    depend on it, and a later version may make another one from the same texts.
    """
    path, origin = folder / VOCABULARY_NAME, folder / _ORIGIN_NAME
    texts = f"{len(corpus)} {_digest_texts(corpus)}"
    if not path.exists():
        # The origin first: a vocabulary is only in place when it can be checked.
        try:
            with open_file_atomically(origin) as file:
                file.write(texts.encode())
        except WriteError as error:
            raise VocabularyError(
                f"A vocabulary made from the corpus is kept in the run's folder, but {folder} cannot be written to: "
                f"{error.reason}. Give another --checkpoint-dir."
            ) from error
        return make_vocabulary(corpus, path, most_tokens=most_tokens).path
    made_from = read_text(origin) if os.path.lexists(origin) else texts
    if made_from != texts:
        raise CorpusError(
            f"The run has a vocabulary, {path}, made from {made_from.partition(' ')[0]} texts. They must be those it goes on "
            f"with, but there are {len(corpus)} now and they differ. Bring back what the run was started with (`myxtts data` "
            "shows what is set aside), or start anew with --reset-training."
        )
    _log.info("Vocabulary: %s, as made when the run was started.", path)
    return path


def group_texts(corpus: Corpus) -> dict[str, list[str]]:
    """The texts of each language that can be cleaned, by the code its tag has."""
    texts: dict[str, list[str]] = {}
    tags: list[str | None] = []
    for name in corpus.language.names:
        try:
            tags.append(resolve_language(name))
        except UnsupportedLanguageError:
            tags.append(None)
    for code, text in zip(corpus.language.codes.tolist(), corpus.text, strict=True):
        tag = tags[code]
        if tag is not None:
            texts.setdefault(tag, []).append(text)
    return texts


def _digest_texts(corpus: Corpus) -> str:
    """What a vocabulary is made from, in whatever order the metadata has it."""
    groups = [[language, str(len(texts)), *sorted(texts)] for language, texts in sorted(group_texts(corpus).items())]
    return digest_parts(*(part.encode("utf-8", "surrogateescape") for group in groups for part in group))

"""Everything a run reads: its clips, their texts and their batches, made once and the same in every process."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path

from myxtts.config import XTTSConfig
from myxtts.data.buckets import plan_shared_buckets
from myxtts.data.corpus import Corpus, Progress, digest_parts, read_snapshot, write_snapshot
from myxtts.data.drops import DropReport
from myxtts.data.errors import ResumeError
from myxtts.data.index import choose_index_folder
from myxtts.data.resume import Fingerprint, take_fingerprint
from myxtts.data.sampler import IndexSampler
from myxtts.data.scan import choose_scan_workers, make_vocabulary_task, scan_train_data, scan_val_data
from myxtts.data.split import split_corpus
from myxtts.data.text_ids import TextIds, collect_text_ids
from myxtts.data.workers import Task
from myxtts.files import WriteError, open_file_atomically, read_text
from myxtts.text.errors import UnsupportedLanguageError, VocabularyError
from myxtts.text.languages import resolve_language
from myxtts.text.tokenizer import Tokenizer
from myxtts.text.vocabulary import train_vocabulary

_log = logging.getLogger(__name__)

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

    def choose_task(self, corpus: Corpus) -> Task:
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

    Raises `ResumeError` when the one that is there was made from other texts. It is never made anew: a run's weights
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
        raise ResumeError(
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

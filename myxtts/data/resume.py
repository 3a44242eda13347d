"""The sampler's saved position, and the proof that it belongs to these clips."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from myxtts.data.corpus import Corpus, digest_parts
from myxtts.data.errors import ResumeError
from myxtts.data.replacements import Failure, ReplacementJournal
from myxtts.data.sampler import IndexSampler
from myxtts.files import read_bytes

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
    """The position in a saved dict. Raises `ResumeError`, naming what changed, when it is of another corpus or plan."""
    if state.get("version") != _VERSION:
        raise ResumeError(
            f"The saved position has version {state.get('version')}, but this MyXTTS reads version {_VERSION}. "
            "Resume with the MyXTTS that saved it, or start anew with --reset-training."
        )
    changes = _describe_changes(Fingerprint(**state["fingerprint"]), fingerprint)
    if changes:
        raise ResumeError(
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

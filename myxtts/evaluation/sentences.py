"""Which sentences of a corpus are spoken, and in whose voice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

import numpy as np
import soundfile
from numpy.typing import NDArray

from myxtts.data.corpus import Corpus
from myxtts.data.ljspeech import AUDIO_SUFFIXES
from myxtts.data.run_data import split_corpus
from myxtts.errors import EvaluationError
from myxtts.inference.speech import to_pcm16

Split = Literal["all", "train", "validation"]

Recordings = dict[str, dict[str, Path]]
"""Speaker -> name of a recording -> its file."""

REFERENCE_SPEAKER = "the given reference"

RECORDINGS_PER_SPEAKER = 10
"""As many recordings make a speaker's voice for a speaker judge."""


class PromptKind(StrEnum):
    """Where a sentence's voice comes from."""

    OTHER_CLIP = "another clip of the speaker"
    SAME_CLIP = "the same clip: the speaker has no other"
    GIVEN = "given"


@dataclass(frozen=True)
class Sentence:
    """A clip of the corpus that is to be said again."""

    name: str
    """Its file, relative to the corpus."""
    file: Path
    text: str
    speaker: str
    language: str
    prompts: tuple[Path, ...]
    """Recordings that give the voice."""
    prompt_kind: PromptKind

    @property
    def voice_speaker(self) -> str:
        """Whose voice the sentence is spoken in."""
        return REFERENCE_SPEAKER if self.prompt_kind is PromptKind.GIVEN else self.speaker


def choose_part(corpus: Corpus, split: Split, seed: int) -> NDArray[np.intp]:
    """Clip numbers of a part, as a training run with this seed and without its own validation data divides the corpus."""
    if split == "all":
        return np.arange(len(corpus))
    train, validation = split_corpus(corpus, seed)
    return train if split == "train" else validation


def choose_sentences(
    corpus: Corpus, clips: NDArray[np.intp], limit: int | None, references: Sequence[Path] = ()
) -> list[Sentence]:
    """At most so many sentences, spread evenly over the clips; always the same ones.

    Recordings that are given lend every sentence their voice; without any, another clip of the same speaker does.
    """
    if not len(clips):
        raise EvaluationError("There is no clip in this part of the data. Give another --split.")
    count = len(clips) if limit is None else min(limit, len(clips))
    return [_make_sentence(corpus, int(clip), references) for clip in clips[_spread(len(clips), count)]]


def choose_recordings(corpus: Corpus, sentences: Sequence[Sentence], references: Sequence[Path] = ()) -> Recordings:
    """Recordings that stand for the speakers whose voices are compared.

    A few of everybody's in the corpus and all that are said again; or, where the voice was given, what it was given by.
    """
    if references:
        return {REFERENCE_SPEAKER: {str(path): path for path in references}}
    found: dict[str, dict[str, Path]] = {}
    for code, speaker in enumerate(corpus.speaker.names):
        own = np.flatnonzero(corpus.speaker.codes == code)
        few = own[_spread(len(own), RECORDINGS_PER_SPEAKER)]
        found[speaker] = {corpus.audio[int(clip)]: corpus.find_file(int(clip)) for clip in few}
    for sentence in sentences:
        found[sentence.speaker][sentence.name] = sentence.file
    return found


def find_other_voices(folder: Path) -> Recordings:
    """Recordings of speakers outside the corpus: a folder of each, in one folder."""
    found: dict[str, dict[str, Path]] = {}
    for speaker in sorted(path for path in folder.glob("*") if path.is_dir()):
        files = sorted(path for path in speaker.rglob("*") if path.suffix.lower() in AUDIO_SUFFIXES)
        if files:
            places = _spread(len(files), RECORDINGS_PER_SPEAKER)
            found[speaker.name] = {str(files[place]): files[place] for place in places}
    if not found:
        raise EvaluationError(
            f"--other-voices must be a folder with a folder of recordings for each speaker, but {folder} has none."
        )
    return found


def _spread(count: int, most: int) -> NDArray[np.intp]:
    """Places of at most so many things, spread evenly."""
    return np.linspace(0, count - 1, min(most, count)).round().astype(np.intp)


def _make_sentence(corpus: Corpus, clip: int, references: Sequence[Path]) -> Sentence:
    # The longest other clip of the speaker: the same for nearly all sentences, so a voice is cloned once.
    own = np.flatnonzero(corpus.speaker.codes == corpus.speaker.codes[clip])
    others = own[own != clip]
    chosen, kind = clip, PromptKind.SAME_CLIP
    if len(others):
        chosen, kind = int(others[np.argmax(corpus.samples[others])]), PromptKind.OTHER_CLIP
    return Sentence(
        name=corpus.audio[clip],
        file=corpus.find_file(clip),
        text=corpus.text[clip],
        speaker=corpus.speaker[clip],
        language=corpus.language[clip],
        prompts=tuple(references) or (corpus.find_file(chosen),),
        prompt_kind=PromptKind.GIVEN if references else kind,
    )


def write_wav(path: Path, samples: NDArray[np.float32], rate_hz: int) -> None:
    """Writes a sound file in place of what is there."""
    soundfile.write(path, np.frombuffer(to_pcm16(samples), "<i2"), rate_hz)

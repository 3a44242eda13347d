"""Sentences are spoken one by one, judged, and compared with their recordings; one that fails does not end the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from myxtts.errors import MyXTTSError
from myxtts.evaluation.error_rates import score_transcript
from myxtts.evaluation.errors import NothingEvaluatedError
from myxtts.evaluation.jury import Jury
from myxtts.evaluation.mel_distance import measure_mel_distance_db
from myxtts.evaluation.results import KINDS, ORIGINAL, SENTENCE, Failure, Heard, SpokenSentence
from myxtts.evaluation.sentences import Sentence
from myxtts.evaluation.sounds import MadeSentence, Sound, SoundMaker

_log = logging.getLogger(__name__)

SOUNDS_FOLDER = "wavs"

Progress = Callable[[int, int], None]
"""Called with the sentences done and all."""


def evaluate_sentences(
    sentences: Sequence[Sentence], maker: SoundMaker, jury: Jury, progress: Progress | None = None
) -> tuple[list[SpokenSentence], list[Failure]]:
    """What became of each sentence, and what failed. Raises `NothingEvaluatedError` where not one could be spoken."""
    spoken: list[SpokenSentence] = []
    failures: list[Failure] = []
    for number, sentence in enumerate(sentences, start=1):
        try:
            made = maker.make(number, sentence)
        except MyXTTSError as error:
            _log.warning("%s: left out: %s", sentence.name, error)
            failures.append(Failure(sentence.name, SENTENCE, str(error)))
        else:
            spoken.append(_judge(sentence, made, jury))
        if progress is not None:
            progress(number, len(sentences))
    if not spoken:
        raise NothingEvaluatedError(
            f"Not one of {len(sentences)} sentences could be spoken. The first, {failures[0].name}: {failures[0].reason}"
        )
    return spoken, [*failures, *jury.failures]


def _judge(sentence: Sentence, made: MadeSentence, jury: Jury) -> SpokenSentence:
    recording = made.sounds[ORIGINAL]
    return SpokenSentence(
        name=sentence.name,
        text=sentence.text,
        speaker=sentence.speaker,
        language=sentence.language,
        prompts=tuple(path.name for path in sentence.prompts),
        prompt_kind=sentence.prompt_kind,
        sounds={
            kind: _hear(sentence, kind, made.sounds[kind], recording, jury) for kind in KINDS if kind in made.sounds
        },
        codes=sum(piece.codes for piece in made.speech.pieces),
        is_stopped=not made.speech.unfinished,
        seconds_to_speak=made.seconds_to_speak,
        correct_codes=made.hits.correct if made.hits else None,
        true_codes=made.hits.count if made.hits else None,
    )


def _hear(sentence: Sentence, kind: str, sound: Sound, recording: Sound, jury: Jury) -> Heard:
    transcript = jury.transcribe(sentence, kind, sound.samples)
    return Heard(
        file=f"{sound.file.parent.name}/{sound.file.name}",
        seconds=sound.seconds,
        transcript=transcript,
        score=None if transcript is None else score_transcript(sentence.text, transcript, sentence.language),
        likeness=jury.compare_voice(sentence, kind, sound.samples),
        mel_distance_db=None if kind == ORIGINAL else measure_mel_distance_db(recording.samples, sound.samples),
    )

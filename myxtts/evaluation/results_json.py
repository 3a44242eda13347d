"""An evaluation as JSON, for programs that compare checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from myxtts.evaluation.error_rates import Errors
from myxtts.evaluation.results import SCHEMA, VERSION, Evaluation, Heard, KindSummary, SpokenSentence, Summary


def dump_evaluation(evaluation: Evaluation) -> dict[str, Any]:
    """Everything; what was not measured is null."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        **evaluation.facts,
        "summary": dump_summary(evaluation.summary),
        "not_measured": [asdict(each) for each in evaluation.not_measured],
        "sentences": [_dump_sentence(sentence) for sentence in evaluation.sentences],
        "failures": [asdict(failure) for failure in evaluation.failures],
        "set_aside": dict(evaluation.set_aside),
    }


def dump_summary(summary: Summary) -> dict[str, Any]:
    """The figures alone."""
    return {
        **{kind: _dump_kind(figures) for kind, figures in summary.kinds.items()},
        "word_error_rate_against_wrong_texts": summary.wrong_text_rate,
        "code_accuracy": summary.code_accuracy,
        "real_time_factor": summary.real_time_factor,
        "length_ratio": summary.length_ratio,
        "stop_failures": summary.stop_failures,
        "sentences": summary.sentences,
        "failed": summary.failed,
    }


def _dump_kind(figures: KindSummary) -> dict[str, Any]:
    return {
        "sentences": figures.sentences,
        "word_error_rate": _get_rate(figures.words),
        "character_error_rate": _get_rate(figures.characters),
        "likeness_to_own_speaker": figures.likeness,
        "lowest_likeness_to_own_speaker": figures.lowest_likeness,
        "likeness_to_nearest_other_speaker": figures.other_likeness,
        "share_nearest_to_own_speaker": figures.own_nearest,
        "mel_distance_db": figures.mel_distance_db,
    }


def _dump_sentence(sentence: SpokenSentence) -> dict[str, Any]:
    return {
        "name": sentence.name,
        "text": sentence.text,
        "speaker": sentence.speaker,
        "language": sentence.language,
        "voice": {"kind": sentence.prompt_kind, "recordings": list(sentence.prompts)},
        "codes": sentence.codes,
        "is_stopped": sentence.is_stopped,
        "seconds_to_speak": sentence.seconds_to_speak,
        "correct_codes": sentence.correct_codes,
        "true_codes": sentence.true_codes,
        **{kind: _dump_sound(sound) for kind, sound in sentence.sounds.items()},
    }


def _dump_sound(sound: Heard) -> dict[str, Any]:
    likeness: Mapping[str, Any] | None = None if sound.likeness is None else asdict(sound.likeness)
    return {
        "file": sound.file,
        "seconds": sound.seconds,
        "transcript": sound.transcript,
        "word_errors": asdict(sound.score.words) if sound.score else None,
        "character_errors": asdict(sound.score.characters) if sound.score else None,
        "likeness": likeness,
        "mel_distance_db": sound.mel_distance_db,
    }


def _get_rate(errors: Errors | None) -> float | None:
    return errors.rate if errors is not None else None

"""Figures of an evaluation as people read them; what is not known is a dash."""

from __future__ import annotations

from myxtts.evaluation.error_rates import Errors
from myxtts.evaluation.results import COPY, ORIGINAL, SPOKEN

DASH = "–"
KIND_NAMES = {ORIGINAL: "Recording", COPY: "Codec alone", SPOKEN: "Spoken"}


def format_rate(rate: float | None) -> str:
    return DASH if rate is None else f"{rate:.3f}"


def format_errors(errors: Errors | None) -> str:
    return DASH if errors is None else f"{errors.errors} of {errors.length}"


def format_cosine(cosine: float | None) -> str:
    return DASH if cosine is None else f"{cosine:.2f}"


def format_decibels(distance_db: float | None) -> str:
    return DASH if distance_db is None else f"{distance_db:.1f} dB"

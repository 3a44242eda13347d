"""How something is to be said."""

from __future__ import annotations

import math
from dataclasses import dataclass

from myxtts.inference.errors import SpeechSettingError

WHOLE_LIMIT = 2**31
"""Whole numbers reach the device as 32 bits."""

_SHOWN = 40
"""Characters of a number in a message. (As a float, a whole number of 400 digits is none.)"""


@dataclass(frozen=True, kw_only=True)
class SpeechSettings:
    """How codes are drawn and how fast they are spoken. The defaults are those of the published v2 model."""

    temperature: float = 0.75
    """Below 1 keeps to what is likely, above 1 strays from it."""
    top_k: int = 50
    """So many of the likeliest codes take part in a draw; 0 lets all."""
    top_p: float = 0.85
    """The likeliest codes that make up this share take part in a draw."""
    repetition_penalty: float | None = None
    """How much less likely a code becomes once it was said; 1 changes nothing. None is what suits the model."""
    greedy: bool = False
    """Always the likeliest code: nothing is drawn, and only the repetition penalty counts."""
    speed: float = 1.0
    """Above 1 speaks faster."""
    seed: int = 0
    """Equal seeds say the same in the same way."""
    max_codes: int | None = None
    """Longest piece in codes of 46 ms; without it, what the model can say at most."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("temperature", 0.01, 10.0),
            ("top_k", 0, WHOLE_LIMIT - 1),
            ("top_p", 0.0, 1.0),
            ("repetition_penalty", 0.1, 100.0),
            ("speed", 0.25, 4.0),
            ("seed", 0, WHOLE_LIMIT - 1),
            ("max_codes", 1, math.inf),
        ):
            self._check_range(name, least, most)

    def _check_range(self, name: str, least: float, most: float) -> None:
        value = getattr(self, name)
        if value is None or least <= value <= most:
            return
        bounds = f"at least {least}" if most == math.inf else f"from {_show(least)} to {_show(most)}"
        default: float | None = getattr(type(self), name)
        hint = "Leave it out to get what suits the model" if default is None else f"The usual value is {_show(default)}"
        raise SpeechSettingError(name, f"must be {bounds}, but is {str(value)[:_SHOWN]}. {hint}.")


def _show(number: float) -> str:
    # In full where it is whole: a bound such as 2.14748e+09 is none that somebody could give.
    return str(number) if isinstance(number, int) else f"{number:g}"

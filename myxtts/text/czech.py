"""Czech ordinals, which num2words does not have."""

from __future__ import annotations

from collections.abc import Callable

UNDER_TWENTY = (
    *("nultý", "první", "druhý", "třetí", "čtvrtý", "pátý", "šestý", "sedmý", "osmý", "devátý"),
    *("desátý", "jedenáctý", "dvanáctý", "třináctý", "čtrnáctý", "patnáctý"),
    *("šestnáctý", "sedmnáctý", "osmnáctý", "devatenáctý"),
)
TENS = ("dvacátý", "třicátý", "čtyřicátý", "padesátý", "šedesátý", "sedmdesátý", "osmdesátý", "devadesátý")
HUNDREDS = ("stý", "dvoustý", "třístý", "čtyřstý", "pětistý", "šestistý", "sedmistý", "osmistý", "devítistý")


def say_ordinal(value: int, say_cardinal: Callable[[int], str]) -> str:
    """The masculine ordinal of a number below a million; `say_cardinal` gives the words in front of the ordinal ones."""
    if value >= 1000:
        thousands, rest = divmod(value, 1000)
        if rest:
            return f"{say_cardinal(thousands * 1000)} {say_ordinal(rest, say_cardinal)}"
        return "tisící" if thousands == 1 else f"{say_cardinal(thousands)} tisící"
    if value >= 100:
        hundreds, rest = divmod(value, 100)
        if rest:
            return f"{say_cardinal(hundreds * 100)} {say_ordinal(rest, say_cardinal)}"
        return HUNDREDS[hundreds - 1]
    if value >= 20:
        tens, rest = divmod(value, 10)
        return f"{TENS[tens - 2]} {UNDER_TWENTY[rest]}" if rest else TENS[tens - 2]
    return UNDER_TWENTY[value]

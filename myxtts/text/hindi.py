"""Hindi number words, which num2words does not have."""

from __future__ import annotations

_ROWS_OF_TEN = (
    "शून्य एक दो तीन चार पाँच छह सात आठ नौ",
    "दस ग्यारह बारह तेरह चौदह पंद्रह सोलह सत्रह अठारह उन्नीस",
    "बीस इक्कीस बाईस तेईस चौबीस पच्चीस छब्बीस सत्ताईस अट्ठाईस उनतीस",
    "तीस इकतीस बत्तीस तैंतीस चौंतीस पैंतीस छत्तीस सैंतीस अड़तीस उनतालीस",
    "चालीस इकतालीस बयालीस तैंतालीस चौवालीस पैंतालीस छियालीस सैंतालीस अड़तालीस उनचास",
    "पचास इक्यावन बावन तिरपन चौवन पचपन छप्पन सत्तावन अट्ठावन उनसठ",
    "साठ इकसठ बासठ तिरसठ चौंसठ पैंसठ छियासठ सड़सठ अड़सठ उनहत्तर",
    "सत्तर इकहत्तर बहत्तर तिहत्तर चौहत्तर पचहत्तर छिहत्तर सतहत्तर अठहत्तर उनासी",
    "अस्सी इक्यासी बयासी तिरासी चौरासी पचासी छियासी सत्तासी अट्ठासी नवासी",
    "नब्बे इक्यानवे बानवे तिरानवे चौरानवे पचानवे छियानवे सत्तानवे अट्ठानवे निन्यानवे",
)
CARDINALS = tuple(word for row in _ROWS_OF_TEN for word in row.split())
SCALES = (
    # From the thousand on, Hindi counts in steps of a hundred.
    *((10**17, "शंख"), (10**15, "पद्म"), (10**13, "नील"), (10**11, "खरब"), (10**9, "अरब")),
    *((10**7, "करोड़"), (10**5, "लाख"), (10**3, "हज़ार"), (10**2, "सौ")),
)
CEILING = 10**19
"""The first number without a name of its own."""
ORDINALS = {1: "पहला", 2: "दूसरा", 3: "तीसरा", 4: "चौथा", 6: "छठा"}
CURRENCIES = {"USD": ("डॉलर", "सेंट"), "EUR": ("यूरो", "सेंट"), "GBP": ("पाउंड", "पेंस")}
POINT = "दशमलव"


def say_cardinal(value: int) -> str:
    """A number from 0 up to, but not including, `CEILING` in words."""
    assert 0 <= value < CEILING, value
    if value < 100:
        return CARDINALS[value]
    words = []
    for scale, name in SCALES:
        count, value = divmod(value, scale)
        if count:
            words.append(f"{say_cardinal(count)} {name}")
    if value:
        words.append(CARDINALS[value])
    return " ".join(words)


def say_ordinal(value: int) -> str:
    """The masculine ordinal: पहला, दूसरा, ... पच्चीसवाँ."""
    return ORDINALS.get(value) or f"{say_cardinal(value)}वाँ"


def say_money(amount: float, currency: str) -> str:
    """An amount with the names of the currency and, where there are any, of its hundredths."""
    whole, hundredths = divmod(round(amount * 100), 100)
    unit, subunit = CURRENCIES[currency]
    if not hundredths:
        return f"{say_cardinal(whole)} {unit}"
    return f"{say_cardinal(whole)} {unit} {say_cardinal(hundredths)} {subunit}"

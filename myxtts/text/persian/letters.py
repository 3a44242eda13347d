"""Persian letters: one code point for each, whatever keyboard, font or PDF the text came from."""

from __future__ import annotations

import re
import unicodedata

ZWNJ = "\u200c"
"""The half-space: parts of one word that are not joined in writing."""

LETTERS = "ءآابپتثجچحخدذرزژسشصضطظعغفقکگلمنوهیئؤ"
PUNCTUATION = "،؛؟.!:«»()-…"
ALPHABET = LETTERS + ZWNJ + PUNCTUATION
"""Every character a normalised Persian text is made of, besides the space and letters of other scripts."""

VOWEL_SIGNS = "\u064b-\u0652\u0670"
"""Short vowels, tanvin, tashdid and the small alef, as a range of a regular expression."""

_HAMZA_ABOVE = "\u0654"

_SAME_LETTER = str.maketrans(
    {
        **dict.fromkeys("يىېۍے", "ی"),
        **dict.fromkeys("كڪػؼڬ", "ک"),
        **dict.fromkeys("ةہھەۃ", "ه"),
        **dict.fromkeys("أإٱٲٳ", "ا"),
        "ٶ": "ؤ",
        "ٸ": "ئ",
        # Legacy encodings wrote the half-space so; others type a zero-width space.
        "¬": ZWNJ,
        "\u200b": ZWNJ,
        "\u0640": None,
    }
)
# Letters as fonts join them, ligatures, ﷼, and full-width Latin. Not the rest of NFKC: it would turn ½ into 1⁄2.
_COMPATIBILITY_FORMS = re.compile("[\ufb00-\ufdff\ufe70-\ufefc\uff01-\uffee]+")
# Controls, signs that steer direction, private and unassigned code points, pictures: nobody speaks them.
_UNSPOKEN_CATEGORIES = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Sk", "So"})
_SPOKEN_PICTURES = frozenset("°℃℉№")
_EMOJI_PARTS = re.compile("[\u034f\ufe00-\ufe0f\u20e3]+")
_QURANIC_SIGNS = re.compile("[\u0610-\u061a\u0653\u0655-\u065f\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed]+")
_VOWEL_SIGN = re.compile(f"[{VOWEL_SIGNS}]+")
_HAMZA_ON_YE = re.compile(f"ی{_HAMZA_ABOVE}")
_EZAFE_ON_HE = re.compile(f"ه[{VOWEL_SIGNS}]*{_HAMZA_ABOVE}|ۀ|ۂ")


def unify_letters(text: str, keep_diacritics: bool = False) -> str:
    """The text with one spelling for each letter, without tatweel, signs of recitation and invisible characters.

    Args:
        keep_diacritics: keep the vowel signs, tanvin and tashdid, which Persian text has only here and there.
    """
    text = _COMPATIBILITY_FORMS.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)
    text = "".join(filter(_is_spoken, text.translate(_SAME_LETTER)))
    # Composing may yield a letter of the table again: ا with a hamza of its own.
    text = unicodedata.normalize("NFC", _EMOJI_PARTS.sub("", text)).translate(_SAME_LETTER)
    # The hamza of خانهٔ is a spoken "ye"; as a letter it survives the removal of signs.
    text = _EZAFE_ON_HE.sub(f"ه{ZWNJ}ی", text)
    text = _HAMZA_ON_YE.sub("ئ", text).replace(_HAMZA_ABOVE, "")
    text = _QURANIC_SIGNS.sub("", text)
    return text if keep_diacritics else _VOWEL_SIGN.sub("", text)


def _is_spoken(character: str) -> bool:
    return (
        character == ZWNJ
        or character.isspace()
        or character in _SPOKEN_PICTURES
        or unicodedata.category(character) not in _UNSPOKEN_CATEGORIES
    )

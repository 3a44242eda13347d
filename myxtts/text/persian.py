"""Persian text as a model should see it: one spelling for each letter, numbers and signs in words, tidy spaces."""

from __future__ import annotations

import re
import unicodedata

from myxtts.text.numbers import write_ascii_digits
from myxtts.text.persian_numbers import ZWNJ, expand_numbers

LETTERS = "ءآابپتثجچحخدذرزژسشصضطظعغفقکگلمنوهیئؤ"
PUNCTUATION = "،؛؟.!:«»()-…"
ALPHABET = LETTERS + ZWNJ + PUNCTUATION
"""Every character a normalised Persian text is made of, besides the space and letters of other scripts."""

VOWEL_SIGNS = "\u064b\u064c\u064d\u064e\u064f\u0650\u0651\u0652\u0670"
"""Short vowels, tanvin, tashdid and the small alef."""

_HAMZA_ABOVE = "\u0654"
SIGNS = VOWEL_SIGNS + _HAMZA_ABOVE
"""What a vocabulary has whose model reads vowel signs in Persian. The published one has all of them, for Arabic, but the last:
one that was grown from it for texts without signs is told by that."""

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


def unify_letters(text: str, signs: bool = False) -> str:
    """The text with one spelling for each letter, without tatweel, signs of recitation and invisible characters, and without
    vowel signs unless these are to stay."""
    text = _COMPATIBILITY_FORMS.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)
    text = "".join(filter(_is_spoken, text.translate(_SAME_LETTER)))
    # Composing may yield a letter of the table again: ا with a hamza of its own.
    text = unicodedata.normalize("NFC", _EMOJI_PARTS.sub("", text)).translate(_SAME_LETTER)
    # The hamza of خانهٔ is a spoken "ye"; as a letter it survives the removal of signs.
    text = _EZAFE_ON_HE.sub(f"ه{ZWNJ}ی", text)
    text = _HAMZA_ON_YE.sub("ئ", text).replace(_HAMZA_ABOVE, "")
    text = _QURANIC_SIGNS.sub("", text)
    return text if signs else _VOWEL_SIGN.sub("", text)


def _is_spoken(character: str) -> bool:
    return (
        character == ZWNJ
        or character.isspace()
        or character in _SPOKEN_PICTURES
        or unicodedata.category(character) not in _UNSPOKEN_CATEGORIES
    )


_LETTER = f"[{LETTERS}{VOWEL_SIGNS}]"

_MARKS = str.maketrans(
    {
        **dict(zip(",;?٫٬۔", "،؛؟.،.", strict=True)),
        **dict.fromkeys("“„‟‹", "«"),
        **dict.fromkeys("”›", "»"),
        **dict.fromkeys("‘’‛", "'"),
        **dict.fromkeys("[{", "("),
        **dict.fromkeys("]}", ")"),
        **dict.fromkeys("‐‑", "-"),
        **dict.fromkeys("‒–—―−ー", " - "),
    }
)
_QUOTED = re.compile('"([^"]*)"')
# Only Latin words have an apostrophe.
_STRAY_APOSTROPHE = re.compile("(?<![a-z])'|'(?![a-z])")

_LOOSE_VOWEL_SIGN = re.compile(f"(?<!{_LETTER})[{VOWEL_SIGNS}]+")
_LOOSE_HALF_SPACE = re.compile(f"(?<!{_LETTER}){ZWNJ}+|{ZWNJ}+(?!{_LETTER})")
_HALF_SPACES = re.compile(f"{ZWNJ}{{2,}}")
_SPACE_BEFORE_MARK = re.compile(r" +(?=[،؛؟.!:»)…])")
_SPACE_AFTER_OPENING = re.compile(r"(?<=[«(]) +")
_ELLIPSIS = re.compile(r"\.{3,}|\.*…[.…]*")
_REPEATED_MARK = re.compile(r"([،؛؟.!:])\1+")
_MARK_WITHOUT_SPACE = re.compile(r"(?<=[،؛؟!:…»)])(?=[^\W\d_]|[«(])")
_STOP_WITHOUT_SPACE = re.compile(rf"(?:(?<={_LETTER}\.)|(?<=[»)]\.))(?={_LETTER})")
_OPENING_WITHOUT_SPACE = re.compile(r"(?<=[\w.،؛؟!:…»)])(?=[«(])")
_DASH = re.compile(r" -+ ?|-+ | ?-{2,} ?")

_WORD_START = rf"(?<![\w{ZWNJ}])"
_WORD_END = rf"(?![\w{ZWNJ}])"
_VERB_PREFIX = re.compile(rf"{_WORD_START}(ن?می) (?={_LETTER}{{2}})")
# Endings that are words of their own only rarely, so that joining them seldom goes wrong.
_PLURAL = "ها(?:ی|یی|یم|یت|یش|یمان|یتان|یشان)?"
_ENDING = re.compile(rf"(?<={_LETTER}{{2}}) ({_PLURAL}|تر(?:ین|ی)?){_WORD_END}")
_PERFECT_ENDING = re.compile(rf"(?<={_LETTER}ه) (ام|ایم|اید|اند){_WORD_END}")


def unify_marks(text: str) -> str:
    """The text with Persian punctuation: ، ؛ ؟ « »."""
    text = _QUOTED.sub(r"«\1»", text).replace('"', "")
    return _STRAY_APOSTROPHE.sub("", text.translate(_MARKS))


def tidy_spaces(text: str) -> str:
    """The text with single spaces, half-spaces only inside words, and marks next to the word they belong to."""
    text = _LOOSE_VOWEL_SIGN.sub("", text)
    text = _HALF_SPACES.sub(ZWNJ, _LOOSE_HALF_SPACE.sub(" ", text))
    text = _DASH.sub(" - ", text)
    text = " ".join(text.split())
    text = _SPACE_AFTER_OPENING.sub("", _SPACE_BEFORE_MARK.sub("", text))
    text = _REPEATED_MARK.sub(r"\1", _ELLIPSIS.sub("…", text))
    text = _MARK_WITHOUT_SPACE.sub(" ", text)
    text = _STOP_WITHOUT_SPACE.sub(" ", text)
    return _OPENING_WITHOUT_SPACE.sub(" ", text)


def join_half_spaces(text: str) -> str:
    """The text with می شود, کتاب ها and رفته اند joined by half-spaces."""
    text = _VERB_PREFIX.sub(rf"\1{ZWNJ}", text)
    text = _ENDING.sub(rf"{ZWNJ}\1", text)
    return _PERFECT_ENDING.sub(rf"{ZWNJ}\1", text)


_SIGN_WORDS = {
    "&": "و", "@": "ات", "%": "درصد", "‰": "در هزار", "#": "هشتگ", "№": "شماره", "+": f"به{ZWNJ}علاوه", "=": "مساوی",
    "×": "ضرب در", "÷": "تقسیم بر", "±": "مثبت منفی", "°": "درجه", "℃": f"درجه سانتی{ZWNJ}گراد", "℉": "درجه فارنهایت",
    "²": "به توان دو", "³": "به توان سه", "$": "دلار", "€": "یورو", "£": "پوند", "¥": "ین", "₹": "روپیه",
    **dict.fromkeys("_/\\|<>*~^`•·", ""),
}  # fmt: skip
"""Those without a word are as good as a space: spaces are tidied later."""
_SIGNS = str.maketrans({sign: f" {word} " for sign, word in _SIGN_WORDS.items()})


def expand_signs(text: str) -> str:
    """The text without signs: those with a name in words, the others as spaces."""
    return text.translate(_SIGNS)


_DOTTED = {
    "ج.ا.ا": "جمهوری اسلامی ایران", "ه.ش": "هجری شمسی", "ه.ق": "هجری قمری", "ق.م": "قبل از میلاد", "پ.م": "پیش از میلاد",
    "ب.م": "بعد از میلاد", "ق.ظ": "قبل از ظهر", "ب.ظ": "بعد از ظهر", "ر.ک": "رجوع کنید به", "ص.پ": "صندوق پستی",
    "پ.ن": f"پی{ZWNJ}نوشت",
}  # fmt: skip
_HONORIFICS = {
    "ص": "صلی الله علیه و آله", "ع": "علیه السلام", "س": "سلام الله علیها", "ره": "رحمت الله علیه", "رض": "رضی الله عنه",
    "عج": "عجل الله تعالی فرجه",
}  # fmt: skip
_TITLES = "دکتر|مهندس|استاد|پروفسور|آقای|خانم"

_PIECE = rf"[\w{ZWNJ}]"
# The dot at the end may also end the sentence: it goes only if something follows.
_LAST_DOT = r"(?: *\.(?= *[^\s.]))?"
_DOTTED_PATTERN = re.compile(
    rf"(?<!{_PIECE})({'|'.join(short.replace('.', ' *[.] *') for short in _DOTTED)})(?!{_PIECE}){_LAST_DOT}"
)
_HONORIFIC_PATTERN = re.compile(rf"\( ?({'|'.join(_HONORIFICS)}) ?\)")
_TITLE_PATTERN = re.compile(rf"(?<!{_PIECE})({_TITLES}) *\. *(?={_PIECE})")


def expand_abbreviations(text: str) -> str:
    """The tidied text with abbreviations in full; its spaces need tidying again."""
    text = _DOTTED_PATTERN.sub(lambda match: f" {_DOTTED[match[1].replace(' ', '')]} ", text)
    text = _HONORIFIC_PATTERN.sub(lambda match: f" {_HONORIFICS[match[1]]} ", text)
    return _TITLE_PATTERN.sub(lambda match: f"{match[1]} ", text)


_NUMBER_SIGNS = str.maketrans("٫٪−", ".%-")


def normalise_persian(text: str, signs: bool = False) -> str:
    """Persian text with one spelling for each letter, numbers and signs in words, and Persian punctuation.

    Words of other scripts stay, in lower case. What nobody can speak (pictures, control characters) goes, and so do vowel signs
    unless these are to stay.
    """
    text = unify_letters(text.lower(), signs)
    text = " ".join(write_ascii_digits(text).translate(_NUMBER_SIGNS).split())
    text = tidy_spaces(unify_marks(expand_signs(expand_numbers(text))))
    # Only now do "ه.ش", "ه. ش" and "ه . ش" look alike, with no sign or number glued to them.
    text = join_half_spaces(tidy_spaces(expand_abbreviations(text)))
    # Signs that stood apart may have come together; those of numbers go with the others.
    return unicodedata.normalize("NFC", text if signs else _VOWEL_SIGN.sub("", text))

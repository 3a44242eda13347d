"""The cleaning of XTTS' 17 languages against the reference, and where ours goes on when the reference gives up."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from myxtts.errors import UnsupportedLanguageError
from myxtts.text.normalise import CHARACTER_LIMITS, clean_text, expand_text
from myxtts.text.tokenizer import Tokenizer

ASSETS = Path(__file__).resolve().parents[1] / "assets" / "parity"
REFERENCE = json.loads((ASSETS / "i_tokenizer.json").read_text(encoding="utf-8"))
CLEANED = [row for row in REFERENCE["cleaner_examples"] if "error" not in row]
CRASHED = [row for row in REFERENCE["cleaner_examples"] if "error" in row]


def test_reference_has_the_rows_it_is_trimmed_to():
    assert (len(CLEANED), len(CRASHED), len(REFERENCE["examples"])) == (74, 6, 7)


@pytest.mark.parametrize("row", CLEANED, ids=lambda row: f"{row['lang']}-{row['text'][:6]}")
def test_cleaning_equals_the_reference(row):
    assert expand_text(row["text"], row["lang"]) == row["cleaned"]


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        (
            "cs",
            "I have 3 cats and 14% of £ 20 @ 36.6° & #1.",
            "i have tři cats and čtrnáct procento of libra dvacet na třicet šest celá šest stupně a křížek první",
        ),
        ("cs", "1st 2nd 3rd 1. 2º 5e", "jednast dvand třird první dvaº pěte"),
        (
            "hi",
            "I have 3 cats and 14% of £ 20 @ 36.6° & #1.",
            "i have तीन cats and चौदह प्रतिशत of पाउंड बीस ऐट दी रेट छत्तीस दशमलव छह डिग्री और हैश एक.",
        ),
        (
            "hi",
            "12,5 and 12.5 and 1.000 and 1,000",
            "बारह दशमलव पाँच and बारह दशमलव पाँच and एक दशमलव शून्य शून्य शून्य and एक हज़ार",
        ),
        ("hi", "$20 20€ £3.50", "बीस डॉलर बीस यूरो तीन पाउंड पचास पेंस"),
        ("hi", "1st 2nd 3rd 1. 2º 5e", "पहला दूसरा तीसरा एक. दोº पाँचe"),
    ],
)
def test_where_the_reference_crashes_the_text_is_still_read(language, text, expected):
    assert {"lang": language, "text": text} in [{"lang": row["lang"], "text": row["text"]} for row in CRASHED]
    assert expand_text(text, language) == expected


@pytest.mark.parametrize("row", REFERENCE["examples"], ids=lambda row: f"{row['lang']}-{row['text'][:6]}")
def test_encoding_equals_the_reference_with_the_tiny_vocabulary(row, tiny_vocab):
    tokenizer = Tokenizer(tiny_vocab)
    assert tokenizer.clean(row["text"], row["lang"]) == row["cleaned"]
    assert tokenizer.encode(row["text"], row["lang"]) == row["ids"]
    assert tokenizer.decode(row["ids"]) == row["decoded"]


def test_encoding_equals_the_reference_with_all_its_vocabularies(parity_dir):
    rows = json.loads((parity_dir / "i_tokenizer.json").read_text(encoding="utf-8"))["examples"]
    arrays = np.load(parity_dir / "i_tokenizer.npz")
    tokenizers = {
        "tiny_vocab.json": Tokenizer(parity_dir / "tiny_vocab.json"),
        "coqui tests/inputs/xtts_vocab.json": Tokenizer(parity_dir / "xtts_test_vocab.json"),
    }
    assert len(rows) == 25
    for index, row in enumerate(rows):
        tokenizer = tokenizers[row["vocab"]]
        ids = tokenizer.encode(row["text"], row["lang"])
        assert ids == row["ids"] == arrays[f"out/ids_{index}"].tolist()
        assert clean_text(row["text"], row["lang"]) == row["cleaned"]
        assert tokenizer.decode(ids) == row["decoded"]


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        # The hundredths of a whole amount are left out, but not the units of the amount itself.
        ("pt", "21€", "vinte e um euros"),
        ("fr", "21€", "vingt et un euros"),
        ("it", "$1,50", "un dollaro e cinquanta centesimi"),
        # One amount without words leaves all signs to their symbol words.
        ("ru", "$20", "двадцать долларов"),
        ("ru", "£3 $20", "фунт три доллар двадцать"),
        # What num2words cannot say is said digit by digit, or with the ending as written.
        ("tr", "10" * 11, "bir sıfır" + " bir sıfır" * 10),
        ("ko", "100번째", "백번째"),
        ("hu", "0,1234", "nulla egész egy kettő három négy"),
        ("es", "0o", "ceroo"),
        # Digits and signs of the Arabic script.
        ("ar", "٥٠ جنديًا", "خمسون جنديًا"),
        ("ar", "١٤٪", "أربعة عشر في المئة"),
        # Letters and accents that come apart.
        ("fr", "E\u0301te\u0301", "été"),
        ("tr", "İZMİR", "izmir"),
        ("ru", "Д-р Смирнов", "доктор смирнов"),
        ("hi", "१,००,०००", "एक लाख"),
        ("de", "\ud800Hallo", "hallo"),
    ],
)
def test_cleaning_beyond_the_reference_rows(language, text, expected):
    assert expand_text(text, language) == expected


def test_region_and_case_of_a_language_code_do_not_matter():
    assert clean_text("A & B", "en_US") == clean_text("A & B", "EN") == "a and b"
    assert clean_text("你好", "zh") == clean_text("你好", "zh-CN") == "ni3hao3"


def test_unknown_language_is_refused_with_the_known_ones():
    with pytest.raises(UnsupportedLanguageError, match=r"one of en, .* fa, but is 'xx'"):
        clean_text("a", "xx")


def test_languages_are_those_of_the_configuration():
    from myxtts.config import LANGUAGES

    assert set(CHARACTER_LIMITS) == set(LANGUAGES)

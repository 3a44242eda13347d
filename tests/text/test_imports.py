"""The text room stays light."""

from __future__ import annotations

import subprocess
import sys


def test_text_imports_neither_tensorflow_nor_the_packages_of_some_languages():
    heavy = ["tensorflow", "keras", "numpy", "pypinyin", "cutlet", "hangul_romanize", "pydantic"]
    program = f"import sys, myxtts.text.sentences, myxtts.text.vocabulary; print([name for name in {heavy} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"

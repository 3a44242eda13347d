"""Persian text as a model should see it: one spelling for each letter, numbers and signs in words, tidy spaces."""

from myxtts.text.persian.letters import ALPHABET
from myxtts.text.persian.normalise import normalise_persian

__all__ = ["ALPHABET", "normalise_persian"]

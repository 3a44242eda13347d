"""3. Speech in, the text half: cleaning, sentences, tokens and vocabularies. Never imports TensorFlow."""

from myxtts.errors import (
    MissingLanguagePackageError,
    MissingLanguageTagError,
    UnsupportedLanguageError,
    VocabularyError,
)
from myxtts.text.normalise import CHARACTER_LIMITS, character_limit, clean_text, expand_text, resolve_language
from myxtts.text.persian import normalise_persian
from myxtts.text.sentences import split_sentences
from myxtts.text.tokenizer import Tokenizer
from myxtts.text.vocabulary import VocabularyGrowth, extend_vocabulary, train_vocabulary

__all__ = [
    "CHARACTER_LIMITS",
    "MissingLanguagePackageError",
    "MissingLanguageTagError",
    "Tokenizer",
    "UnsupportedLanguageError",
    "VocabularyError",
    "VocabularyGrowth",
    "character_limit",
    "clean_text",
    "expand_text",
    "extend_vocabulary",
    "normalise_persian",
    "resolve_language",
    "split_sentences",
    "train_vocabulary",
]

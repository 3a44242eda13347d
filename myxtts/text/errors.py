"""What can go wrong between a text and its token ids."""

from myxtts.errors import MachineError, UserError


class UnsupportedLanguageError(UserError):
    """A language MyXTTS has no cleaning for."""


class MissingLanguagePackageError(MachineError):
    """A package that only some languages need is not installed."""


class VocabularyError(UserError):
    """A vocabulary file that cannot be read, is not a vocabulary, or lacks what XTTS needs."""


class MissingLanguageTagError(VocabularyError):
    """A vocabulary without the tag of the language asked for."""

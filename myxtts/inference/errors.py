"""What can be wrong with a request for speech."""

from __future__ import annotations

from myxtts.errors import UserError


class SpeechRequestError(UserError):
    """A text or a setting that nothing can be said with."""


class SpeechSettingError(SpeechRequestError):
    """A setting with a value that is none of its.

    Args:
        name: the setting's, as `SpeechSettings` has it.
        problem: what must be, what is and what to do, as a sentence that follows the name.
    """

    def __init__(self, name: str, problem: str):
        self.name = name
        self.problem = problem
        super().__init__(f"{name} {problem}")


class VoiceError(UserError):
    """A reference, voice file or name that gives no voice."""


class UnableToSpeakError(UserError):
    """A model that lacks what speaking takes."""

"""What can be wrong with a request for speech."""

from __future__ import annotations

from myxtts.errors import UserError


class SpeechRequestError(UserError):
    """A text or a setting that nothing can be said with."""


class VoiceError(UserError):
    """A reference, voice file or name that gives no voice."""


class UnableToSpeakError(UserError):
    """A model that lacks what speaking takes."""

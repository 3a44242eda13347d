"""The model's own speaker encoder as a judge of voices: better than none, but it judges what it was trained beside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from myxtts.errors import MyXTTSError
from myxtts.evaluation.errors import JudgeFailedError, JudgeRequestError
from myxtts.inference.synthesizer import Synthesizer


class OwnSpeakerJudge:
    """See `Judge`.

    Args:
        synthesizer: whose speaker encoder listens. A model without one is refused.
    """

    name = "the model's own speaker encoder"
    languages: tuple[str, ...] | None = None

    def __init__(self, synthesizer: Synthesizer):
        if synthesizer.xtts.speaker_encoder is None:
            raise JudgeRequestError(
                "--speaker-judge own takes a model with a trained speaker encoder, but this one has none. Give --speaker-judge "
                "resemblyzer, or another."
            )
        self._synthesizer = synthesizer

    def ask(self, wav: Path, language: str) -> Any:
        try:
            return self._synthesizer.clone_voice([wav]).speaker_G
        except MyXTTSError as error:
            raise JudgeFailedError(str(error)) from error

    def close(self) -> None:
        pass

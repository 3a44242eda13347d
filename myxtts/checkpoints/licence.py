"""What must be said when Coqui's published weights are imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from myxtts.checkpoints.errors import ModelFileError
from myxtts.checkpoints.model_directory import read_manifest

NOTICE_KEY = "myxtts_notice"
"""In the config.json of an export of ours: the notice of that model, or null where it has none."""

XTTS_WEIGHTS_NOTICE = (
    "The XTTS v2 weights that Coqui published are under the Coqui Public Model License (CPML): they, models fine-tuned "
    "from them, and the speech made with either may be used for non-commercial purposes only. The licence is in the "
    "file LICENSE.txt beside the published weights. MyXTTS' own licence covers its code, not these weights."
)


def find_notice(model: Path, config: Mapping[str, Any]) -> str | None:
    """The notice that a model file must keep: what we wrote beside it, else Coqui's, since it may well be theirs.

    Args:
        model: the file.
        config: of the config.json that comes with it.
    """
    try:
        manifest = read_manifest(model.parent)
    except ModelFileError:
        # None there, or somebody else's.
        notice = config.get(NOTICE_KEY, XTTS_WEIGHTS_NOTICE)
    else:
        notice = manifest.facts.notice if model.name in manifest.files else XTTS_WEIGHTS_NOTICE
    return notice if notice is None or isinstance(notice, str) else XTTS_WEIGHTS_NOTICE

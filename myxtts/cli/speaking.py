"""Flags of the commands that speak: which model, how codes are drawn, what makes the sound, and where."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from myxtts.cli.parser import Parser
from myxtts.config.presets import BASE_VOICE
from myxtts.errors import CommandLineError

if TYPE_CHECKING:
    from myxtts.inference.speech import SpeechSettings


CONSENT = (
    "A voice belongs to its speaker. Clone one only with the speaker's consent, say that the speech is made by a machine, "
    "and never use it to deceive."
)

SAMPLING_FLAGS = {
    "temperature": (
        float,
        "below 1 keeps to what is likely, above 1 strays from it (default: 0.75; 0.5 for a model trained from scratch)",
    ),
    "top_k": (int, "draw among so many of the likeliest codes; 0 is all (default: 50)"),
    "top_p": (float, "draw among the likeliest codes that make up this share (default: 0.85)"),
    "repetition_penalty": (
        float,
        "how much less likely a code becomes once it was said (default: 5; 1 for a model trained from scratch)",
    ),
    "speed": (float, "above 1 speaks faster (default: 1)"),
    "seed": (int, "equal seeds say the same in the same way (default: 0)"),
    "max_codes": (int, "longest piece, in codes of 46 ms (default: what the model can)"),
    "retries": (
        int,
        "how often a doubtful sentence is said again, the best take kept; with --stream it then waits for each sentence "
        "(default: 7 for a model trained from scratch, else 0; 0 with --stream)",
    ),
    "sentence_pause": (float, "seconds between sentences (default: the lexicon's, else 0.2)"),
    "paragraph_pause": (float, "seconds between paragraphs (default: the lexicon's, else 0.6)"),
}


def add_checkpoint_flag(parser: Parser) -> None:
    """Which model speaks."""
    parser.add_argument(
        "--checkpoint",
        metavar="DIR",
        type=Path,
        default=Path(BASE_VOICE),
        help="a model directory, or a checkpoint of a run (default: base, the voice that comes with MyXTTS)",
    )


def add_speaking_flags(parser: Parser) -> None:
    """How codes are drawn, and where."""
    for name, (kind, help) in SAMPLING_FLAGS.items():
        metavar = "N" if kind is int else "X"
        parser.add_argument(_spell_flag(name), metavar=metavar, type=kind, help=help)
    parser.add_argument("--greedy", action="store_true", help="always the likeliest code instead of drawing")
    add_engine_flags(parser)


def add_engine_flags(parser: Parser) -> None:
    """What decodes, and what makes the sound."""
    parser.add_argument(
        "--engine",
        choices=("auto", "float32", "int8"),
        default="auto",
        help="what decodes: TensorFlow in float32, or onnxruntime in int8, on a CPU several times as fast (the extra fast); auto is "
        "int8 where it can be had and a CPU speaks (default: auto)",
    )
    parser.add_argument(
        "--vocoder",
        choices=("auto", "griffin-lim", "decoder"),
        default="auto",
        help="what makes the sound: Griffin-Lim, which is rough, or the waveform decoder, as good as it was trained; auto is "
        "the decoder where there is one (default: auto)",
    )


def add_lexicon_flag(parser: Parser) -> None:
    """How words of one's own are read."""
    given = os.environ.get("MYXTTS_LEXICON") or None
    help = "words and how they are read, and pauses, by language (default: the file that MYXTTS_LEXICON names)"
    parser.add_argument("--lexicon", metavar="FILE", type=Path, default=given, help=help)


def read_speech_settings(arguments: argparse.Namespace) -> SpeechSettings:
    """The settings that `add_speaking_flags` lets one give."""
    from myxtts.errors import SpeechSettingError
    from myxtts.inference.speech import SpeechSettings

    given = {name: getattr(arguments, name) for name in SAMPLING_FLAGS if getattr(arguments, name) is not None}
    try:
        return SpeechSettings(**given, greedy=arguments.greedy)
    except SpeechSettingError as error:
        raise CommandLineError(f"{_spell_flag(error.name)} {error.problem}") from error


def tell_code_limit(settings: SpeechSettings, most_codes: int) -> None:
    """Says so where pieces longer than the model can say were asked for."""
    if settings.max_codes is not None and settings.max_codes > most_codes:
        print(
            f"Warning: --max-codes {settings.max_codes} is more than this model can say in a piece: {most_codes} is used.",
            file=sys.stderr,
        )


def _spell_flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def open_speaking_device(*, rehearsal: bool) -> AbstractContextManager[Any]:
    """The scope of the first GPU in sight, else of the CPU, which is said on standard error.

    Sets TensorFlow up for it; call it before anything uses that.
    """
    from myxtts.cli.devices import describe_single_device
    from myxtts.config import resolve_config
    from myxtts.devices.machine import prepare_environment, read_machine
    from myxtts.devices.plan import DeviceUse, PlanRequest
    from myxtts.devices.planning import plan_devices

    prepare_environment(os.environ)
    rehearsal = rehearsal or resolve_config().training.rehearsal
    plan = plan_devices(PlanRequest(mode="single", rehearsal=rehearsal, task=DeviceUse.SPEAK), read_machine())
    # Before TensorFlow is loaded, which takes seconds. Standard output may be the sound itself.
    print(describe_single_device(plan), file=sys.stderr, flush=True)
    from myxtts.devices.runtime import apply_plan
    from myxtts.utils.commons import get_device_context

    apply_plan(plan)
    return get_device_context(plan.model.device)

"""`myxtts serve`: a model behind HTTP, with a page to try it."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from myxtts.cli.parser import Parser
from myxtts.cli.speaking import CONSENT, add_checkpoint_flag, add_engine_flags, add_lexicon_flag, open_speaking_device
from myxtts.errors import MachineError

if TYPE_CHECKING:
    from myxtts.inference.synthesizer import Synthesizer
    from myxtts.serving.server import ServerSettings

LIMIT_FLAGS = {
    "max_text": ("text_characters", 4096, "longest text of a request, in characters"),
    "rate": ("requests_per_minute", 60, "requests a minute of one client"),
    "queue": ("queue", 8, "requests that may wait or be answered at a time"),
}
"""Flag -> its field of `ServingLimits`, default and help."""


PACKAGES = ("starlette", "uvicorn")


class MissingServerPackageError(MachineError):
    """The packages that only `serve` needs are not installed."""


def add_flags(parser: Parser) -> None:
    parser.description = (
        "Speak over HTTP: POST /v1/audio/speech as in the OpenAI API, and a page to type a text and listen. Only "
        f"this machine is let in unless --host says otherwise. {CONSENT}"
    )
    add_checkpoint_flag(parser)
    parser.add_argument(
        "--voices",
        metavar="DIR",
        type=Path,
        help="a folder of voice files (from `synthesize --save-voice`) and recordings; their names are the voices'",
    )
    parser.add_argument(
        "--allow-upload", action="store_true", help="let clients send a recording and speak in its voice, with consent"
    )
    parser.add_argument(
        "--host", metavar="ADDRESS", default="127.0.0.1", help="where to listen (default: 127.0.0.1, this machine only)"
    )
    parser.add_argument("--port", metavar="N", type=int, default=8020, help="0 is any that is free (default: 8020)")
    parser.add_argument(
        "--token",
        metavar="TOKEN",
        help="that clients must bring; better given as MYXTTS_SERVE_TOKEN, since others can read command lines",
    )
    parser.add_argument(
        "--allow-anyone", action="store_true", help="let other machines in without a token, where --host does"
    )
    parser.add_argument(
        "--first-chunk",
        metavar="N",
        type=int,
        default=6,
        help="codes, of 46 ms, of a sentence before a stream sends sound: fewer are heard sooner, by a waveform decoder alone "
        "(Griffin-Lim needs 6), more bridge a slow machine (default: 6)",
    )
    for name, (_, default, help) in LIMIT_FLAGS.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", metavar="N", type=int, default=default, help=f"{help} (default: {default})"
        )
    add_lexicon_flag(parser)
    add_engine_flags(parser)


def require_server_packages(command: str) -> None:
    """Raises `MissingServerPackageError` where the extra of a command, called like it, is not installed."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingServerPackageError(
            f"`myxtts {command}` needs {' and '.join(PACKAGES)}, but {missing[0]} is not installed. Install the extra: "
            f"pip install -c constraints.txt '.[{command}]' in the source folder of MyXTTS"
        )


def run(arguments: argparse.Namespace) -> int:
    require_server_packages("serve")
    from myxtts.inference.speech import find_speaking_model
    from myxtts.serving.server import bind_socket, name_address, run_server
    from myxtts.serving.voices import check_voice_files
    from myxtts.text.lexicon import read_lexicon
    from myxtts.utils.commons import setup_logging

    setup_logging()
    settings = read_settings(arguments)
    # What is wrong with paths and the address is said before a model is loaded.
    model, lexicon = find_speaking_model(arguments.checkpoint), read_lexicon(arguments.lexicon)
    if settings.voices is not None:
        check_voice_files(settings.voices)
    with contextlib.closing(bind_socket(settings)) as listener:
        address = name_address(listener)

        def tell_ready(synthesizer: Synthesizer, voices: tuple[str, ...]) -> None:
            print(synthesizer.engine_note)
            print(synthesizer.vocoder.how)
            print(synthesizer.speaker_note)
            print(f"Voices: {', '.join(voices) or 'none but uploads'}. {CONSENT}")
            print(f"Page    {address}/")
            print(f"Speech  POST {address}/v1/audio/speech", flush=True)

        @contextlib.contextmanager
        def open_synthesizer() -> Iterator[Synthesizer]:
            """In the thread that will use it."""
            with open_speaking_device(rehearsal=arguments.rehearsal):
                from myxtts.inference.synthesizer import load_synthesizer

                yield load_synthesizer(model, vocoder=arguments.vocoder, lexicon=lexicon, engine=arguments.engine)

        run_server(listener, settings, open_synthesizer, tell_ready)
    print("Stopped.")
    return 0


def read_settings(arguments: argparse.Namespace) -> ServerSettings:
    """The server's settings in flags and environment."""
    from myxtts.serving.limits import ServingLimits
    from myxtts.serving.server import TOKEN_VARIABLE, ServerSettings

    token = arguments.token if arguments.token is not None else os.environ.get(TOKEN_VARIABLE)
    return ServerSettings(
        host=arguments.host,
        port=arguments.port,
        token=token,
        allow_anyone=arguments.allow_anyone,
        voices=arguments.voices,
        allow_upload=arguments.allow_upload,
        first_codes=arguments.first_chunk,
        limits=ServingLimits(**{name: getattr(arguments, flag) for flag, (name, *_) in LIMIT_FLAGS.items()}),
    )

"""`myxtts studio`: a local page for the whole way from recordings to a voice."""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import webbrowser
from pathlib import Path

from myxtts.cli.parser import Parser
from myxtts.cli.serve import require_server_packages
from myxtts.cli.speaking import CONSENT
from myxtts.errors import CommandLineError

TOKEN_VARIABLE = "MYXTTS_STUDIO_TOKEN"


def add_flags(parser: Parser) -> None:
    parser.description = (
        "Upload or record, mend the transcripts while listening, train, compare and speak, on a page in the browser. It starts the "
        f"commands of the shell and keeps everything in one folder. Only this machine is let in. {CONSENT}"
    )
    parser.add_argument(
        "--workspace", metavar="DIR", type=Path, default=Path("studio"),
        help="where recordings, corpora and runs are kept; made if it is not there (default: studio)",
    )  # fmt: skip
    parser.add_argument("--host", metavar="ADDRESS", default="127.0.0.1", help="where to listen (default: 127.0.0.1, this machine only)")  # fmt: skip
    parser.add_argument("--port", metavar="N", type=int, default=8030, help="0 is any that is free (default: 8030)")
    parser.add_argument("--max-upload", metavar="MB", type=int, default=2048, help="largest recording to upload (default: 2048)")  # fmt: skip
    parser.add_argument(
        "--recogniser-command", metavar="COMMAND",
        help="transcribes instead of the English recogniser, as `corpus --recogniser-command` takes it",
    )  # fmt: skip
    parser.add_argument("--open", action="store_true", help="open the page in the browser of this machine")


def run(arguments: argparse.Namespace) -> int:
    require_server_packages("studio")
    if arguments.max_upload < 1:
        raise CommandLineError(f"--max-upload must be 1 MB or more, but is {arguments.max_upload}.")
    from myxtts.serving.server import ServerSettings, bind_socket, name_address
    from myxtts.studio.app import Studio, run_studio
    from myxtts.studio.workspace import Workspace
    from myxtts.utils.commons import setup_logging

    setup_logging()
    workspace = Workspace(arguments.workspace)
    try:
        workspace.make()
    except OSError as error:
        raise CommandLineError(
            f"--workspace {arguments.workspace} cannot be made: {error.strerror}. Give another folder."
        ) from error
    token = os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(24)
    settings = ServerSettings(host=arguments.host, port=arguments.port, token=token)
    with contextlib.closing(bind_socket(settings)) as listener:
        studio = Studio(
            workspace,
            most_upload_bytes=arguments.max_upload << 20,
            recogniser=arguments.recogniser_command,
            rehearsal=arguments.rehearsal,
        )

        def tell_ready() -> None:
            address = f"{name_address(listener)}/?token={token}"
            print(f"Workspace  {workspace.root}")
            print(f"Studio     {address}", flush=True)
            if arguments.open:
                webbrowser.open_new_tab(address)

        run_studio(listener, studio, tell_ready, token=token, host=arguments.host)
    print("Stopped. Trainings that were started go on.")
    return 0

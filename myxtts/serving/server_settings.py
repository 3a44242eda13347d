"""How a server is to be run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from myxtts.serving.errors import ServerStartError
from myxtts.serving.limits import ServingLimits

TOKEN_VARIABLE = "MYXTTS_SERVE_TOKEN"


@dataclass(frozen=True)
class ServerSettings:
    """How a server is to be run.

    Args:
        host, port: where it listens; port 0 is any that is free.
        token: that clients must bring.
        allow_anyone: listen beyond this machine without a token.
        voices: folder of voice files and recordings.
        allow_upload: let clients clone voices.
        limits: what it takes on.
    """

    host: str = "127.0.0.1"
    port: int = 8020
    token: str | None = None
    allow_anyone: bool = False
    voices: Path | None = None
    allow_upload: bool = False
    limits: ServingLimits = field(default_factory=ServingLimits)

    def __post_init__(self) -> None:
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token.strip()):
            raise ServerStartError(
                f"A token must be made of visible ASCII characters, but is not. Make one with `openssl rand -hex 16`, and "
                f"give it in {TOKEN_VARIABLE}."
            )
        if not 0 <= self.port <= 65535:
            raise ServerStartError(f"--port must be from 0 to 65535, but is {self.port}.")

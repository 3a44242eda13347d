"""Taking private things out of a text that will be shown to others: who, where, secrets, and what a corpus says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

SECRET = "<secret>"
USER = "<user>"
HOST = "<host>"
TEXT = "<text of a clip>"
SHORTEST_SECRET = 6
"""A shorter value of a variable is a switch, and would be found in every word."""
SHORTEST_TEXT = 8
"""A shorter text ("Yes.") is part of others and says nothing about anybody."""
_TELLING_NOTHING = frozenset({"root", "user", "ubuntu", "admin", "docker", "jovyan", "runner", "nobody", "localhost"})
"""Names that many machines have, and words that a report needs."""

_SECRET_NAME = re.compile(
    r"token|secret|passw|passphrase|credential|api_?key|access_?key|private_?key|auth|cookie", re.I
)
_SECRET_SHAPES = tuple(
    re.compile(pattern)
    for pattern in (
        # Of Hugging Face, GitHub, GitLab, OpenAI and its like, Slack, Amazon, Google, Weights & Biases.
        r"\bhf_[A-Za-z0-9]{16,}",
        r"\bgh[opsur]_[A-Za-z0-9]{16,}|\bgithub_pat_\w{16,}",
        r"\bglpat-[\w-]{16,}",
        r"\bsk-[\w-]{16,}",
        r"\bxox[abprs]-[\w-]{10,}",
        r"\bA[KS]IA[A-Z0-9]{16}\b",
        r"\bAIza[\w-]{30,}",
        r"\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*",
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    )
)
_ADDRESS_WITH_PASSWORD = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s/@:]*(?::[^\s/@]*)?@", re.I)
_BEARER = re.compile(r"\b(Bearer|Basic)(\s+)[\w.~+/=-]{8,}", re.I)
_NAMES = r"(?:token|secret|passw(?:or)?d|passphrase|credentials?|api[_-]?key|access[_-]?key|private[_-]?key)[\w-]*"
_ASSIGNMENTS = (
    # TOKEN=value, "token": "value", and in a list of words "--token", "value".
    re.compile(
        rf"(?P<name>{_NAMES}['\"]?\s*[=:]\s*['\"]?|{_NAMES}(['\"])\s*,\s*['\"])(?P<value>[^\s'\"`,;]{{6,}})", re.I
    ),
    re.compile(rf"(?P<name>--[\w-]*{_NAMES}\s+)(?P<value>[^\s'\"`]{{6,}})", re.I),
)
_CARD_ID = re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{4,}\b", re.I)


@dataclass(frozen=True)
class Redactor:
    """What is private here.

    Args:
        home: the user's folder; shown as `~`.
        user: the user's name.
        host: the machine's name.
        secrets: values that must not be shown wherever they stand.
        texts: of the corpus.
    """

    home: Path | None = None
    user: str = ""
    host: str = ""
    secrets: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()

    def clean(self, text: str) -> str:
        """The text without anything private. What was clean stays as it is."""
        # Longest first: a value may be the beginning of another.
        for secret in sorted(set(self.secrets), key=len, reverse=True):
            text = text.replace(secret, SECRET) if len(secret) >= SHORTEST_SECRET else text
        for own in sorted(set(self.texts), key=len, reverse=True):
            text = text.replace(own, TEXT) if len(own) >= SHORTEST_TEXT else text
        text = _hide_shapes(text)
        if self.home is not None and len(self.home.parts) > 1:
            text = re.sub(rf"{re.escape(str(self.home))}(?![\w.-])", "~", text)
        text = re.sub(r"(/(?:home|Users)/)(?!<)[^/\s'\":,;)]+", rf"\g<1>{USER}", text)
        for name, shown in ((self.user, USER), (self.host, HOST)):
            if len(name) > 1 and name.lower() not in _TELLING_NOTHING:
                text = re.sub(rf"(?<![\w<]){re.escape(name)}(?![\w>])", shown, text)
        return text


def list_secrets(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Values of variables whose names say that they are nobody's business."""
    return tuple(value for name, value in environ.items() if is_secret_name(name) and len(value) >= SHORTEST_SECRET)


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name may hold something secret."""
    return _SECRET_NAME.search(name) is not None


def select_variables(environ: Mapping[str, str], wanted: Iterable[str]) -> dict[str, str]:
    """Of the environment, the variables that were asked for and are no secret."""
    return {name: environ[name] for name in wanted if name in environ and not is_secret_name(name)}


def _hide_shapes(text: str) -> str:
    """Without what looks like a secret, wherever it comes from."""
    for shape in _SECRET_SHAPES:
        text = shape.sub(SECRET, text)
    text = _ADDRESS_WITH_PASSWORD.sub(rf"\1{SECRET}@", text)
    text = _BEARER.sub(rf"\1\2{SECRET}", text)
    for assignment in _ASSIGNMENTS:
        text = assignment.sub(_hide_value, text)
    return _CARD_ID.sub(r"\1-<id>", text)


def _hide_value(match: re.Match[str]) -> str:
    # "text_tokens: 298000" is a number of the model.
    if match["value"].replace(".", "").isdigit() or match["value"].startswith("<"):
        return match[0]
    return f"{match['name']}{SECRET}"

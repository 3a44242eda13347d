"""The pages about speaking and serving: their figures are the program's."""

import re

import pytest

from myxtts.cli import serve
from myxtts.cli.main import make_parser
from myxtts.inference.speech import MOST_CHARACTERS
from myxtts.serving.limits import ServingLimits
from myxtts.serving.request import FIELDS
from myxtts.serving.sounds import FORMATS
from tests.support.doc_blocks import LANGUAGES
from tests.support.processes import ROOT

DIGITS = str.maketrans("۰۱۲۳۴۵۶۷۸۹٬", "0123456789,")


def read_page(language, name):
    return (ROOT / "docs" / language / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("language", LANGUAGES)
def test_fields_formats_and_limits_are_the_programs(language):
    page = read_page(language, "serving.md")
    for name in (*FIELDS.keys() - {"model", "stream_format"}, *FORMATS):
        assert f"`{name}`" in page, name
    for flag, (_, default, _) in serve.LIMIT_FLAGS.items():
        assert re.search(rf"`--{flag.replace('_', '-')}`\u200e? \(\u200f?{default}\)", page), flag
    cells = [cell.strip().replace("؛", ";") for cell in page.translate(DIGITS).split("|")]
    limits = ServingLimits()
    for figure in (
        f"{limits.uploads}",
        f"{limits.connections_per_client}; {limits.connections}",
        rf"{limits.headers_s:g} \w+; {limits.body_s:g} \w+",
        rf"{limits.send_s:g} \w+; .* {limits.send_s:g} \w+",
        rf".* {limits.upload_bytes >> 20} (MB|مگابایت)\b.*",
    ):
        assert any(re.fullmatch(figure, cell) for cell in cells), figure


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_longest_text_is_the_programs(language):
    assert f"{MOST_CHARACTERS:,}" in read_page(language, "speaking.md").translate(DIGITS)


def test_the_defaults_of_the_flags_are_those_of_the_server(monkeypatch):
    from myxtts.serving.server import TOKEN_VARIABLE, ServerSettings

    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    settings = serve.read_settings(make_parser("serve", "serve").parse_all(["--checkpoint", "model"]))
    assert settings == ServerSettings()
    assert settings.host == "127.0.0.1", "nobody but this machine is let in unless asked"


def test_a_token_comes_from_the_flag_or_the_environment(monkeypatch):
    from myxtts.serving.server import TOKEN_VARIABLE

    def read_token(*flags):
        return serve.read_settings(make_parser("serve", "serve").parse_all(["--checkpoint", "model", *flags])).token

    monkeypatch.setenv(TOKEN_VARIABLE, "of-the-environment")
    assert read_token() == "of-the-environment"
    assert read_token("--token", "of-the-flag") == "of-the-flag"

"""What a command says while one waits for it."""

import io

import pytest

from myxtts.cli.output import show_progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "said"), [(Terminal, "\rSentence 1 of 2\rSentence 2 of 2\n"), (io.StringIO, "")]
)  # fmt: skip
def test_progress_is_counted_on_one_line_of_a_terminal_and_nowhere_else(monkeypatch, stream, said):
    heard = stream()
    monkeypatch.setattr("sys.stderr", heard)
    for done in (1, 2):
        show_progress("Sentence", done, 2)
    assert heard.getvalue() == said

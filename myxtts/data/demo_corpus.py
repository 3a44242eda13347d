"""The corpus that comes with MyXTTS: 62 short synthetic clips, most in one English voice, some in Persian."""

from __future__ import annotations

from pathlib import Path


def demo_corpus_path() -> Path:
    """The folder of the embedded demo corpus, in LJSpeech form. Its `SOURCES.txt` says how it was made."""
    return Path(__file__).resolve().parent / "demo"

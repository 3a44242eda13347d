"""How the texts of a run are measured: in tokens of the vocabulary it has, or of one made from its corpus."""

from __future__ import annotations

from pathlib import Path

from myxtts.config import XTTSConfig
from myxtts.data.corpus import Corpus
from myxtts.data.scan import make_vocabulary_task
from myxtts.data.vocabulary_choice import keep_vocabulary
from myxtts.data.workers import Task


class TextMeasure:
    """Decides about the vocabulary as soon as the clips are known, and remembers it.

    Args:
        config: may name a vocabulary.
        folder: of the run; where there is no vocabulary, one is made from the corpus and kept there.
        of_checkpoint: the vocabulary of the model that is fine-tuned.
    """

    def __init__(self, config: XTTSConfig, folder: Path, of_checkpoint: Path | None):
        given = Path(config.data.vocabulary) if config.data.vocabulary else of_checkpoint
        self._given = given.absolute() if given else None
        self._folder = folder.absolute()
        self._most_tokens = config.model.text_tokens
        self._chosen: Path | None = None

    @property
    def vocabulary(self) -> Path:
        """The vocabulary in force."""
        assert self._chosen is not None, "a scan has found clips"
        return self._chosen

    def choose_task(self, corpus: Corpus) -> Task:
        """How the texts of clips are measured; see `scan.TextTaskMaker`."""
        self._chosen = self._given or keep_vocabulary(corpus, self._folder, most_tokens=self._most_tokens)
        return make_vocabulary_task(self._chosen)

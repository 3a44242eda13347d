"""The pages of the documentation and their code blocks.

A block's opening line says its language and, for code, how far it is tested: ```` ```bash run ````.
"""

import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import ROOT

LANGUAGES = ("en", "fa")
README = {"en": "README.md", "fa": "README.fa.md"}
CODE = ("bash", "python", "yaml")
BESIDE = ("train_main.py", "configs", "utilities", "constraints.txt", "quick_fix_gpu_utilization.sh", "examples")
"""What the commands of the pages find where they are run."""
RUN, REHEARSAL, PARSE_ONLY = "run", "rehearsal", "parse-only"
TAGS = (RUN, REHEARSAL, PARSE_ONLY)
"""Really run as it stands; run on logical CPU devices and a few updates long; only taken apart."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    tag: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def list_pages(language):
    """The pages in a language, the README first: their paths from the root."""
    pages = sorted((ROOT / "docs" / language).glob("*.md"))
    return [README[language], *(str(path.relative_to(ROOT)) for path in pages)]


def read_blocks(page):
    """The fenced blocks of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.finditer(r"^```(\w*)[ ]?([\w-]*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return [Block(page, text[: each.start()].count("\n") + 1, each[1], each[2], each[3]) for each in found]


def read_all_blocks():
    """The blocks of all English pages; the Persian ones are the same."""
    return [block for page in list_pages("en") for block in read_blocks(page)]


def split_commands(text):
    """The commands of a shell block: comments out, continued lines joined."""
    lines = text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := _split(line))]


def _split(line):
    return " ".join(
        shlex.quote(word) if word not in ("|", ">", "&&", "&") else word for word in shlex.split(line, comments=True)
    )


def list_needed_runs(block):
    """The names in runs/ that a block uses without having begun them itself."""
    begun, needed = set(), set()
    for line in split_commands(block.text) if block.language == "bash" else [block.text]:
        goes_on = "--resume" in line or ("--stage decoder" in line and "--init-from" not in line)
        begins = set() if goes_on else set(re.findall(r"checkpoint[-_]dir\W+runs/(\w+)", line))
        needed |= set(re.findall(r"runs/(\w+)", line)) - begins - begun
        begun |= begins
    return sorted(needed)


def make_stand(folder: Path, corpus: Path, model: Path | None = None) -> None:
    """What the commands of the pages find in the folder they are run in.

    Args:
        model: a folder that stands for the imported model, and whose vocabulary stands for a grown one.
    """
    for name in BESIDE:
        (folder / name).symlink_to(ROOT / name)
    for name in ("my_corpus", "other_corpus", "persian"):
        # A folder of its own, since pages write beside the clips: a vocabulary, for one.
        target = folder / "path" / "to" / name
        target.mkdir(parents=True)
        for path in corpus.iterdir():
            (target / path.name).symlink_to(path)
    if model is not None:
        (folder / "xtts_v2").symlink_to(model)
        shutil.copy(model / "vocab.json", folder / "path" / "to" / "persian")

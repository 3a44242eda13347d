"""`myxtts vocabulary`: a vocabulary grown by a language, with advice on how far."""

from __future__ import annotations

import argparse
from pathlib import Path

from myxtts.cli.parser import Parser
from myxtts.errors import CommandLineError

MOST_MERGES = 100_000
MOST_TEXT_BYTES = 256 << 20


def add_flags(parser: Parser) -> None:
    parser.description = (
        "Grow the vocabulary of a model by a language: its tag, the characters it lacks, and tokens for what is frequent in the "
        "texts around them. Old tokens keep their numbers. Says how many new ones the texts are worth."
    )
    parser.add_argument("base", metavar="VOCAB.json", type=Path, help="the vocabulary to grow, a published one perhaps")
    parser.add_argument("--language", metavar="CODE", required=True, help="of the texts, for example fa")
    texts = parser.add_mutually_exclusive_group(required=True)
    texts.add_argument("--train-data", metavar="PATH", type=Path, help="a corpus whose texts are taken")
    texts.add_argument("--text-file", metavar="FILE", type=Path, help="a file with a text in each line")
    parser.add_argument("--out", metavar="FILE", type=Path, required=True, help="the new one; may be the old one")
    parser.add_argument(
        "--merges", metavar="N", type=int, help="most new tokens of several letters (default: as advised)"
    )


def run(arguments: argparse.Namespace) -> int:
    from myxtts.data.ljspeech import read_metadata
    from myxtts.data.texts import CHARACTERS_PER_MERGE, LEAST_MERGES, MOST_ADVISED_MERGES, advise_merges
    from myxtts.files import read_text
    from myxtts.text.normalise import resolve_language
    from myxtts.text.tokenizer import Tokenizer
    from myxtts.text.vocabulary import extend_vocabulary

    language, out, merges = resolve_language(arguments.language), arguments.out, arguments.merges
    if merges is not None and not 0 <= merges <= MOST_MERGES:
        raise CommandLineError(f"--merges must be from 0 to {MOST_MERGES}, but is {merges}.")
    if arguments.text_file is not None:
        texts = [line for line in read_text(arguments.text_file, MOST_TEXT_BYTES).splitlines() if line.strip()]
    else:
        corpus = read_metadata(arguments.train_data, language=language)
        texts = [text for row, text in enumerate(corpus.text) if corpus.language[row] == language]
    characters = sum(map(len, texts))
    advised = advise_merges(characters)
    growth = extend_vocabulary(arguments.base, out, language, texts, merges=advised if merges is None else merges)
    gained = f"{growth.tag or 'no new tag'}, {len(growth.characters)} characters, {len(growth.merges)} merges"
    tokenizer = Tokenizer(out)
    tokens = sum(len(tokenizer.encode(text, language)) for text in texts)
    print(f"Grown   {growth.old_text_tokens} -> {growth.text_tokens} tokens: {gained}")
    print(
        f"Texts   {len(texts)} of {characters / len(texts):.0f} characters, or {tokens / len(texts):.1f} tokens, on average"
    )
    print(
        f"Advice  --merges {advised}: one for {CHARACTERS_PER_MERGE} characters of text, at least {LEAST_MERGES} and at most "
        f"{MOST_ADVISED_MERGES}. More would be too rare to be learnt; fewer make texts longer for the model."
    )
    print(
        f"Written {out}: give it to `myxtts train` with --vocabulary, beside --init-from the model and --language {language}"
    )
    return 0

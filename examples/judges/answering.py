"""How a judge that is started once answers `myxtts evaluate`: it says a line when it is ready; then each line that comes names a
wav and, behind a tab, its language, and is answered by a line, which begins with `error:` where there is no answer."""

import os
import sys
from collections.abc import Callable


def answer_lines(load: Callable[[], Callable[[str], str]]) -> None:
    """Loads a judge, and has it answer about the path of each wav until no more comes."""
    # Packages print to standard output, which belongs to the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    judge = load()
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        try:
            answer = judge(line.split("\t")[0])
        except Exception as error:  # noqa: BLE001  whatever a package raises is about this clip, and is told
            answer = f"error: {error}"
        print(" ".join(answer.split()), file=answers, flush=True)

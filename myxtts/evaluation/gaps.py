"""What an evaluation does not tell, and how to get it."""

from __future__ import annotations

from collections.abc import Sequence

from myxtts.evaluation.judges import RECOGNISER, SPEAKER_JUDGE, JudgeKind
from myxtts.evaluation.jury import Jury
from myxtts.evaluation.results import NotMeasured
from myxtts.evaluation.sentences import PromptKind, Sentence


def list_gaps(sentences: Sequence[Sentence], jury: Jury, *, has_codec: bool) -> list[NotMeasured]:
    """Every figure that this evaluation leaves out."""
    gaps: list[tuple[str, str, str]] = []
    what = "Word and character error rates"
    unknown = [sentence.language for sentence in sentences if not jury.understands(sentence.language)]
    if jury.recogniser is None:
        gaps.append((what, "no recogniser was asked.", _explain_judge(RECOGNISER)))
    elif unknown:
        why = (
            f"{jury.recogniser.name} does not understand {', '.join(dict.fromkeys(unknown))}, the language of {len(unknown)} of "
            f"{len(sentences)} sentences."
        )
        gaps.append((what, why, f"Give a recogniser that does: {_explain_others(RECOGNISER)}"))
    if jury.speaker_judge is None:
        gaps.append(("Whose voice it is", "no speaker judge was asked.", _explain_judge(SPEAKER_JUDGE)))
    elif len(jury.speakers) == 1:
        how = "Give a folder with a folder of recordings for each of some others with --other-voices."
        gaps.append(("How alike the voice is to other speakers", "there is only one speaker.", how))
    if jury.speaker_judge is not None and any(sentence.prompt_kind is PromptKind.GIVEN for sentence in sentences):
        why = "the voice was given (--reference), and theirs is another."
        gaps.append(("The voices of recordings and copies", why, "Leave --reference out to compare them."))
    if not has_codec:
        why = "the model has no DVAE, which makes codes of recordings."
        gaps.append(("The codec's copy and the codes predicted", why, "Import it again with --dvae."))
    return [NotMeasured(*gap) for gap in gaps]


def _explain_judge(kind: JudgeKind) -> str:
    name, known = next(iter(kind.known.items()))
    languages = f" (for {', '.join(known.languages)})" if known.languages else ""
    return (
        f"Give {kind.flag} {name}{languages} after `{known.install}` in an environment of its own, named with --judge-python; "
        f"or another: {_explain_others(kind)}"
    )


def _explain_others(kind: JudgeKind) -> str:
    return f"{kind.flag} module:function, or {kind.flag}-command 'COMMAND {{wav}}'."

"""What an evaluation does not tell, and how to get it."""

from __future__ import annotations

from collections.abc import Sequence

from myxtts.evaluation.judges import RECOGNISER, SPEAKER_JUDGE, JudgeKind
from myxtts.evaluation.jury import Jury
from myxtts.evaluation.results import NotMeasured
from myxtts.evaluation.sentences import PromptKind, Sentence


def list_gaps(sentences: Sequence[Sentence], jury: Jury, *, has_codec: bool) -> list[NotMeasured]:
    """Every figure that this evaluation leaves out."""
    gaps = [*_list_recogniser_gaps(sentences, jury), *_list_speaker_gaps(sentences, jury)]
    if not has_codec:
        gaps.append(
            NotMeasured(
                "The codec's copy and the codes predicted",
                "the model has no DVAE, which makes codes of recordings.",
                "Import it again with --dvae.",
            )
        )
    return gaps


def _list_recogniser_gaps(sentences: Sequence[Sentence], jury: Jury) -> list[NotMeasured]:
    what = "Word and character error rates"
    if jury.recogniser is None:
        return [NotMeasured(what, "no recogniser was asked.", _explain_judge(RECOGNISER))]
    unknown = [sentence for sentence in sentences if not jury.understands(sentence.language)]
    if not unknown:
        return []
    languages = ", ".join(dict.fromkeys(sentence.language for sentence in unknown))
    why = f"{jury.recogniser.name} does not understand {languages}, the language of {len(unknown)} of {len(sentences)} sentences."
    return [NotMeasured(what, why, f"Give a recogniser that does: {_explain_others(RECOGNISER)}")]


def _list_speaker_gaps(sentences: Sequence[Sentence], jury: Jury) -> list[NotMeasured]:
    if jury.speaker_judge is None:
        return [NotMeasured("Whose voice it is", "no speaker judge was asked.", _explain_judge(SPEAKER_JUDGE))]
    gaps = []
    if len(jury.speakers) == 1:
        gaps.append(
            NotMeasured(
                "How alike the voice is to other speakers",
                "there is only one speaker.",
                "Give a folder with a folder of recordings for each of some others with --other-voices.",
            )
        )
    if any(sentence.prompt_kind is PromptKind.GIVEN for sentence in sentences):
        gaps.append(
            NotMeasured(
                "The voices of recordings and copies",
                "the voice was given (--reference), and theirs is another.",
                "Leave --reference out to compare them.",
            )
        )
    return gaps


def _explain_judge(kind: JudgeKind) -> str:
    name, known = next(iter(kind.known.items()))
    languages = f" (for {', '.join(known.languages)})" if known.languages else ""
    return (
        f"Give {kind.flag} {name}{languages} after `{known.install}` in an environment of its own, named with --judge-python; "
        f"or another: {_explain_others(kind)}"
    )


def _explain_others(kind: JudgeKind) -> str:
    return f"{kind.flag} module:function, or {kind.flag}-command 'COMMAND {{wav}}'."

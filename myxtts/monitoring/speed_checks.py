"""What a short profile of the user's own run, and looking at its cards meanwhile, shows as issues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from myxtts.monitoring.card_summary import CardSummary
from myxtts.monitoring.health import Issue, Severity
from myxtts.monitoring.profile_verdict import Rule, Verdict
from myxtts.monitoring.words import format_share

SERIOUS_SHARE = 0.2


def check_speed(verdict: Verdict, *, is_rehearsal: bool) -> Iterator[Issue]:
    """Every rule that a profile breaks. In a rehearsal none is serious: it shares processors that no card would."""
    yield from (_describe_rule(rule, is_rehearsal) for rule in verdict.rules)


def check_cards(cards: Sequence[CardSummary]) -> Iterator[Issue]:
    """What holds the clocks of cards down."""
    for card in cards:
        yield from _check_card(card)


def _describe_rule(rule: Rule, is_rehearsal: bool) -> Issue:
    is_serious = rule.share > SERIOUS_SHARE and not is_rehearsal
    return Issue(
        Severity.SERIOUS if is_serious else Severity.WORTH_CHANGING,
        rule.title.capitalize().replace("Gpu", "GPU"),
        rule.evidence,
        rule.advice[0],
        f"at most {format_share(rule.share)} of the step time",
        rule.share,
    )


def _check_card(card: CardSummary) -> Iterator[Issue]:
    remedies = {
        "temperature": "better cooling: clean fans, free the intake, more distance between cards",
        "temperature (hardware)": "better cooling: clean fans, free the intake, more distance between cards",
        "power limit": f"sudo nvidia-smi -i {card.physical_id} -pl WATTS    # within what supply and cooling bear",
        "clocks set by the user": f"sudo nvidia-smi -i {card.physical_id} -rgc",
    }
    for reason in card.throttled_by or ():
        is_normal = reason == "power limit"
        yield Issue(
            # A card at its power limit works as hard as it may: that is how a busy one looks.
            Severity.NOTE if is_normal else Severity.WORTH_CHANGING,
            f"GPU {card.physical_id} runs below its full clock: {reason}",
            card.describe(),
            remedies.get(reason, "look at supply and connectors of the card"),
            _describe_clock_gain(card),
        )


def _describe_clock_gain(card: CardSummary) -> str:
    if card.clock_mhz is None or not card.max_clock_mhz:
        return "unknown: the driver does not tell the clocks"
    return f"at most {format_share(max(0.0, 1 - card.clock_mhz / card.max_clock_mhz))} more clock"

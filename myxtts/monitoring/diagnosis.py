"""Everything a diagnosis has found, and how it is told: plain text within 80 columns, or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from myxtts.devices.machine import Machine
from myxtts.devices.topology import Link
from myxtts.monitoring.card_summary import summarise_cards, summarise_host
from myxtts.monitoring.corpus_checks import CorpusFacts
from myxtts.monitoring.health import Issue, has_serious
from myxtts.monitoring.machine_sampler import MachineSample
from myxtts.monitoring.profile_facts import Part, Profile
from myxtts.monitoring.software_facts import SoftwareFacts
from myxtts.monitoring.words import UNKNOWN, format_duration, format_share, format_step_time, wrap_titled

WIDTH, INDENT = 80, 12
# Issues hold commands, which are to be pasted whole.
_wrap = partial(wrap_titled, width=WIDTH, indent=INDENT, breaks_words=False)


@dataclass(frozen=True)
class Diagnosis:
    """Facts and issues; None for what was not looked at."""

    software: SoftwareFacts
    machine: Machine
    links: tuple[Link, ...]
    settings: Mapping[str, str]
    """What decides about speed, as a run with this configuration has it."""
    corpus: CorpusFacts | None
    profile: Profile | None
    samples: tuple[MachineSample, ...]
    card_problem: str | None = None
    """Why cards were not looked at, or not all of them; None where all were."""
    issues: tuple[Issue, ...] = field(default=())
    """Ranked."""

    @property
    def is_serious(self) -> bool:
        return has_serious(self.issues)


def format_diagnosis(diagnosis: Diagnosis) -> str:
    """The whole report."""
    sections = [
        ("SOFTWARE", _list_software(diagnosis.software)),
        ("DEVICES", _list_devices(diagnosis)),
        ("SETTINGS", _list_settings(diagnosis.settings)),
        ("CORPUS", _list_corpus(diagnosis.corpus)),
        ("SPEED TEST", _list_speed(diagnosis.profile)),
        ("LIVE", _list_live(diagnosis)),
    ]
    parts = ["\n".join([title, *lines]) for title, lines in sections]
    return "\n\n".join([*parts, "\n".join(_list_issues(diagnosis.issues))])


def format_diagnosis_json(diagnosis: Diagnosis) -> str:
    """The facts; unknown values are null."""
    profile, machine = diagnosis.profile, diagnosis.machine
    facts: dict[str, Any] = {
        "is_serious": diagnosis.is_serious,
        "issues": [{**asdict(issue), "severity": issue.severity.word} for issue in diagnosis.issues],
        "software": asdict(diagnosis.software),
        "cards": [asdict(card) for card in machine.cards],
        "links": [asdict(link) for link in diagnosis.links],
        "settings": dict(diagnosis.settings),
        "corpus": None if diagnosis.corpus is None else asdict(diagnosis.corpus),
        "speed": None if profile is None else {
            "step": asdict(profile.times),
            "costs": {str(part): asdict(cost) for part, cost in profile.costs.items()},
        },
        "live": [asdict(card) for card in summarise_cards(diagnosis.samples)],
        "card_problem": diagnosis.card_problem,
    }  # fmt: skip
    return json.dumps(facts, indent=1)


def _list_software(software: SoftwareFacts) -> Iterator[str]:
    yield from _wrap("System", f"{software.system}, Python {software.python}")
    build = software.tensorflow
    if build is None:
        yield from _wrap("TensorFlow", "not installed")
    elif build.is_cuda_build is None:
        yield from _wrap("TensorFlow", f"{build.version}, build {UNKNOWN}")
    elif build.is_cuda_build:
        yield from _wrap(
            "TensorFlow", f"{build.version}, built for CUDA {build.cuda_version}, cuDNN {build.cudnn_version}"
        )
    else:
        yield from _wrap("TensorFlow", f"{build.version}, built without CUDA")
    yield from _wrap("Driver", software.driver or software.driver_problem or UNKNOWN)
    for library in software.libraries:
        yield f"{'':<{INDENT}}{library.file:<22}{'found' if library.problem is None else 'missing':<9}{library.name}"


def _list_devices(diagnosis: Diagnosis) -> Iterator[str]:
    scan = diagnosis.machine.scan
    for card in scan.cards:
        free = UNKNOWN if card.free_mib is None else f"{card.free_mib} MB"
        total = UNKNOWN if card.total_mib is None else f"{card.total_mib} MB"
        yield from _wrap(f"GPU {card.physical_id}", f"{card.name}, {free} free of {total}")
    for physical_id, reason in scan.lost:
        yield from _wrap(f"GPU {physical_id}", reason)
    if not scan.cards and not scan.lost:
        yield from _wrap("GPUs", scan.problem or "none")
    for link in diagnosis.links:
        yield from _wrap("Link", link.explain())
    yield from _wrap("Host", f"{diagnosis.machine.host_free_mib} MB of memory free")


def _list_settings(settings: Mapping[str, str]) -> Iterator[str]:
    width = max(map(len, settings), default=0) + 2
    for name, value in settings.items():
        yield f"{name:<{width}}{value}"


def _list_corpus(corpus: CorpusFacts | None) -> Iterator[str]:
    if corpus is None:
        yield "not looked at: see the issues"
        return
    yield from _wrap("Clips", f"{corpus.clips}, {format_duration(corpus.seconds)}; {corpus.set_aside} set aside")
    yield from _wrap(
        "Formats", ", ".join(f"{clips} {ending or 'without ending'}" for ending, clips in corpus.formats[:5])
    )
    rates = ", ".join(f"{files} at {rate} Hz" for rate, files in corpus.rates_hz[:3]) or UNKNOWN
    yield from _wrap("Rates", f"{rates} ({corpus.probed} files looked at)")
    yield from _wrap(
        "Lengths",
        f"half up to {corpus.median_s:.1f} s, 95 % up to {corpus.p95_s:.1f} s, the longest {corpus.longest_s:.1f} s",
    )
    yield from _wrap("Padding", f"{format_share(corpus.padding)} of the audio, in {corpus.shapes} batch shapes")


def _list_speed(profile: Profile | None) -> Iterator[str]:
    if profile is None:
        yield "not run"
        return
    times = profile.times
    yield from _wrap(
        "Step",
        f"{format_step_time(times.mean_s)} (p50 {format_step_time(times.p50_s)}, p95 {format_step_time(times.p95_s)}), "
        f"{times.steps} batches in {profile.run.mode} mode on {profile.run.model_device}",
    )
    yield from _wrap("Parts", ", ".join(f"{part} {format_share(profile.costs[part].share)}" for part in Part))
    yield from _wrap("Headspace", f"{format_share(profile.headspace)} of a step: a faster pipeline could gain no more")
    for note in profile.run.notes:
        yield from _wrap("Note", note)


def _list_live(diagnosis: Diagnosis) -> Iterator[str]:
    cards = summarise_cards(diagnosis.samples)
    for card in cards:
        yield from _wrap(f"GPU {card.physical_id}", card.describe())
    if diagnosis.card_problem is not None:
        yield from _wrap("GPUs", f"{UNKNOWN}: {diagnosis.card_problem}")
    elif not cards:
        yield from _wrap("GPUs", f"{UNKNOWN}: no card takes part")
    yield from _wrap("Host", summarise_host(diagnosis.samples).describe())


def _list_issues(issues: Sequence[Issue]) -> Iterator[str]:
    if not issues:
        yield "NO ISSUES FOUND"
        return
    yield f"ISSUES ({len(issues)}), the most pressing first"
    for number, issue in enumerate(issues, start=1):
        yield ""
        yield from _wrap(f"{number}", f"[{issue.severity.word}] {issue.observation}", indent=4)
        for title, text in (("Evidence", issue.evidence), ("Remedy", issue.remedy), ("Gain", issue.gain)):
            yield from _wrap(f"    {title}", text, indent=14)

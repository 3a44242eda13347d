"""Why a GPU is not busy: software, devices, settings, corpus and speed, what is wrong with them, and its remedy.

Issues are ranked. Nothing here imports TensorFlow before the speed test, so it works where TensorFlow cannot be loaded.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from myxtts.audio.reading import inspect_clip
from myxtts.config import XTTSConfig
from myxtts.config.presets import CARDS_BY_TOTAL_MIB, START_BATCHES
from myxtts.config.settings import parse_gpu_ids
from myxtts.data.buckets import BucketPlan
from myxtts.data.corpus import Corpus
from myxtts.data.scan import ScanResult
from myxtts.devices.machine import (
    ALLOCATOR,
    ONEDNN,
    VARIABLES,
    VISIBLE_DEVICES,
    CardLink,
    Machine,
    explain_unserved,
    read_links,
    read_machine,
    select_visible,
)
from myxtts.devices.nvml import Card
from myxtts.errors import ClipError, DevicePlanError, MyXTTSError
from myxtts.monitoring.findings import USUAL_READERS, MachineFacts, split_batch
from myxtts.monitoring.machine_facts import (
    DRIVER_LIBRARY,
    SoftwareFacts,
    describe_hardware,
    describe_software,
    read_software,
)
from myxtts.monitoring.profile_facts import BrokenRule, Profile, StepPart
from myxtts.monitoring.sampler import CardSummary, MachineSample, MachineSampler, summarise_cards, summarise_host
from myxtts.training.mode import Tell
from myxtts.tuning import profile as profiling
from myxtts.units import SAMPLE_RATE_HZ, UNKNOWN, format_duration, format_share, format_step_time, wrap_titled

STEPS, LIVE_S = 20, 2.0
"""Of the speed test; and how long cards are looked at where none is run."""
INSTALL = "pip install 'tensorflow[and-cuda]'"
CPU_SPEED = "the model trains on the card, no longer on the processor"
MEASURE_FIRST = "unknown before it is measured: compare `myxtts profile` with and without it"
FEW_BATCHES_AHEAD = 10
SLOW_FORMATS = frozenset({".mp3", ".ogg", ".opus", ".m4a", ".aac"})
MUCH_PADDING = 0.2
WIDE_SPREAD = 4.0
SHORTER = 0.9
"""Of the longest clip: what 95 % stay below must be notably less, or it is not a few clips that are long."""
NOTABLE_SHARE = 0.05
PROBED_FILES = 32
SERIOUS_SHARE = 0.2
"""Of a step: a rule of the profile that costs more is serious."""
# Issues hold commands, which are to be pasted whole.
_wrap = partial(wrap_titled, breaks_words=False)

Rows = list[tuple[str, str]]
"""Names and texts of a section."""
Scan = Callable[[XTTSConfig], tuple[ScanResult, BucketPlan]]
"""Finds the clips of a configuration, and the batches that a run makes of them."""


class Severity(StrEnum):
    """How much an issue matters, the most pressing first."""

    SERIOUS = "serious"
    WORTH_CHANGING = "worth changing"
    NOTE = "note"


SERIOUS, WORTH_CHANGING, NOTE = Severity


@dataclass(frozen=True)
class Issue:
    """One thing that is not as it could be."""

    severity: Severity
    observation: str
    evidence: str
    remedy: str
    """A command, a flag or a YAML line; nothing when nothing is to be done."""
    gain: str
    share: float = 0.0
    """Of the time that is at stake, 0 to 1, where it is known: ranks issues of the same severity."""


@dataclass(frozen=True)
class CorpusFacts:
    """A corpus, as far as speed goes."""

    clips: int
    seconds: float
    formats: tuple[tuple[str, int], ...]
    rates_hz: tuple[tuple[int, int], ...]
    """Of a few files that were looked at."""
    median_s: float
    p95_s: float
    longest_s: float
    padding: float
    shapes: int
    set_aside: int = 0
    """Clips that the metadata names and a run cannot use."""

    @property
    def probed(self) -> int:
        return sum(files for _, files in self.rates_hz)

    @property
    def lengths(self) -> str:
        return f"{self.median_s:.1f} s, 95 % up to {self.p95_s:.1f} s, the longest {self.longest_s:.1f} s"


@dataclass(frozen=True)
class Diagnosis:
    """Facts and issues; None for what was not looked at."""

    software: SoftwareFacts
    machine: Machine
    links: tuple[CardLink, ...]
    settings: Mapping[str, str]
    """What decides about speed, as a run with this configuration has it."""
    corpus: CorpusFacts | None
    profile: Profile | None
    samples: tuple[MachineSample, ...]
    card_problem: str | None
    """Why cards were not looked at, or not all of them; None where all were."""
    issues: tuple[Issue, ...]
    """The most pressing first."""

    @property
    def is_serious(self) -> bool:
        return any(issue.severity is SERIOUS for issue in self.issues)


def diagnose(
    config: XTTSConfig,
    environ: Mapping[str, str],
    *,
    scan: Scan,
    tests_speed: bool,
    tell: Tell,
    command: Sequence[str] = (),
) -> Diagnosis:
    """Everything that can be found out about a configuration on this machine. `environ` is as the user has it, before
    MyXTTS sets variables of its own."""
    tell("looking at software and devices")
    machine, software = read_machine(environ), read_software()
    links = read_links([card.physical_id for card in machine.cards])
    issues = list(check_set_up(config, machine, software, links))
    tell("looking at the corpus")
    corpus = profile = None
    # Whatever fails is an issue, and the rest is still looked at.
    try:
        found, plan = scan(config)
        corpus = measure_corpus(found.corpus, plan, len(found.drops.drops))
        issues += check_corpus(corpus, config.data.batch_size, config.training.gradient_accumulation_steps)
    except MyXTTSError as error:
        issues.append(_explain_failure("The corpus cannot be used", error))
    # Without TensorFlow there is no run to test; that is an issue already.
    if tests_speed and software.tensorflow is not None:
        try:
            # Read anew: by now the variables are those that a run has.
            around = read_machine()
            planned = profiling.plan_profile(config, around, tell, command)
            profile, verdict = profiling.measure_and_judge(planned, around, STEPS, tell)
            issues += [describe_rule(rule, is_rehearsal=config.training.rehearsal) for rule in verdict.rules]
        except (MyXTTSError, ImportError) as error:
            # TensorFlow may be installed, but one of its libraries not, or that of another version.
            why = ": a package does not load" if isinstance(error, ImportError) else ""
            issues.append(_explain_failure(f"The speed test could not be run{why}", error))
    if profile is not None:
        samples, problem = profile.samples, profile.card_problem
    else:
        # What cards and host do while we do nothing is the work of others.
        tell("looking at what is running")
        with MachineSampler([card.physical_id for card in machine.cards]) as sampler:
            time.sleep(LIVE_S)
        samples, problem = tuple(sampler.samples), sampler.problem
        if problem is None and not machine.cards:
            problem = machine.scan.problem or "this machine has no NVIDIA GPU"
    issues += check_cards(summarise_cards(samples))
    settings, ranked = _describe_settings(config, environ, profile is not None), tuple(rank_issues(issues))
    return Diagnosis(software, machine, tuple(links), settings, corpus, profile, samples, problem, ranked)


def rank_issues(issues: Iterable[Issue]) -> list[Issue]:
    """Serious ones first; among equals what costs most. Issues that cost nothing known keep their order."""
    return sorted(issues, key=lambda issue: (list(Severity).index(issue.severity), -issue.share))


def _describe_settings(config: XTTSConfig, environ: Mapping[str, str], has_run: bool) -> dict[str, str]:
    """What decides about speed; TensorFlow's own part is read back where it was used."""
    data, training = config.data, config.training
    settings = {
        "model size": config.model.size,
        "batch": f"{data.batch_size} clips x {training.gradient_accumulation_steps}",
        "precision": data.mixed_precision,
        "XLA": "auto" if data.enable_xla == "auto" else "on" if data.enable_xla else "off",
        "static shapes": "on" if data.pad_to_fixed_length else "off",
        "readers": str(data.num_workers),
        "batches ahead": str(data.pipeline_buffer_size),
        "cache": data.cache,
    }
    if has_run:
        from myxtts.devices.runtime import list_logical_devices, read_execution

        execution = read_execution()
        within, between = execution.intra_op or "automatic", execution.inter_op or "automatic"
        settings["TensorFlow's devices"] = ", ".join(list_logical_devices())
        settings["threads"] = f"{within} within an operation, {between} between"
    changed = [f"{name}={environ[name]}" for name in VARIABLES if name in environ]
    return {**settings, "environment": ", ".join(changed) or "nothing set"}


def measure_corpus(corpus: Corpus, plan: BucketPlan, set_aside: int) -> CorpusFacts:
    """The facts of a corpus with at least one clip and of the batches that a run makes; the headers of a few files are read."""
    seconds_N = corpus.samples / SAMPLE_RATE_HZ
    median_s, p95_s = np.quantile(seconds_N, (0.5, 0.95)).tolist()
    rates: Counter[int] = Counter()
    for clip in np.unique(np.linspace(0, len(corpus) - 1, min(PROBED_FILES, len(corpus))).astype(int)).tolist():
        try:
            rates[inspect_clip(corpus.find_file(clip)).rate_hz] += 1
        except ClipError:
            # What cannot be read any more is the business of the scan, which says so.
            continue
    return CorpusFacts(
        clips=len(corpus),
        seconds=corpus.total_seconds,
        formats=tuple(Counter(PurePosixPath(name).suffix.lower() for name in corpus.audio).most_common()),
        rates_hz=tuple(rates.most_common()),
        median_s=median_s,
        p95_s=p95_s,
        longest_s=float(seconds_N.max()),
        padding=plan.waste.audio_share,
        shapes=len(plan.buckets),
        set_aside=set_aside,
    )


# What is wrong, and what to do about it. By hand: an issue reads as a paragraph, not as a column of words.
# fmt: off


def check_set_up(config: XTTSConfig, machine: Machine, software: SoftwareFacts, links: Sequence[CardLink]) -> Iterator[Issue]:
    """What can be said before anything is read or run."""
    around = MachineFacts.of_machine(machine)
    if software.tensorflow is None:
        yield Issue(SERIOUS, "TensorFlow is not installed: nothing can be trained, rehearsed or measured",
                    "Python finds no package of that name",
                    INSTALL if machine.cards else "pip install tensorflow", "training runs")
    cards: Sequence[Card] = ()
    # In a rehearsal no card is wanted: that there is none, or that one does not work, is no matter then.
    if not config.training.rehearsal:
        yield from check_software(software, machine)
        yield from check_devices(machine)
        yield from _check_links(config, links)
        cards = [card for card in machine.cards if card.physical_id in (around.cards or ())]
    yield from check_environment(machine.environ)
    yield from check_config(config, cards, around.processors or 1)


def check_software(facts: SoftwareFacts, machine: Machine) -> Iterator[Issue]:
    """Issues of what a card needs. Without a card only that is one: libraries would help nothing."""
    if not machine.cards and machine.scan.problem:
        yield Issue(SERIOUS, "The NVIDIA driver is installed but does not answer", machine.scan.problem,
                    "sudo modprobe nvidia; after an update of the driver restart the machine", CPU_SPEED)
        return
    build = facts.tensorflow
    if not machine.cards:
        yield Issue(SERIOUS, "This machine has no NVIDIA GPU that can be seen: training runs on the CPU",
                    facts.driver_problem or "the driver counts no card",
                    "install the NVIDIA driver (Ubuntu: sudo ubuntu-drivers install), or try both roles with --rehearsal "
                    "--mode dual; in a container: --gpus all", CPU_SPEED)
        return
    if build is not None and build.is_cuda_build is False:
        yield Issue(SERIOUS, f"TensorFlow {build.version} cannot use a GPU",
                    f"it was built without CUDA; the machine has {len(machine.cards)} card(s)",
                    f"pip uninstall -y tensorflow tensorflow-cpu && {INSTALL}", CPU_SPEED)
    missing = {library.file: library.problem or "" for library in facts.missing}
    driver_problem = missing.pop(DRIVER_LIBRARY, None)
    if missing:
        yield Issue(SERIOUS, "CUDA libraries that TensorFlow needs are missing: it trains on the CPU without a word",
                    f"{', '.join(missing)} ({next(iter(missing.values()))})", INSTALL, CPU_SPEED)
    if driver_problem is not None:
        yield Issue(SERIOUS, "The driver's library cannot be loaded", driver_problem,
                    "in a container: start it with --gpus all; else install the NVIDIA driver again and restart", CPU_SPEED)


def check_devices(machine: Machine) -> Iterator[Issue]:
    """Issues of cards that do not answer, that this TensorFlow was not built for, are hidden, or are used by others."""
    for unserved in explain_unserved(machine):
        remedy, gain = unserved.remedy, "the card can be used"
        if unserved.can_run:
            remedy = "install a build of TensorFlow for this card (docs/en/versions.md); until then give the first start some minutes"
            gain = "XLA, and a first start without compiling"
        yield Issue(SERIOUS, "A card is not one that TensorFlow was built for", unserved.reason, remedy, gain)
    for physical_id, reason in machine.scan.lost:
        yield Issue(SERIOUS, f"GPU {physical_id} does not answer", reason,
                    "restart the machine; `dmesg | grep -i xid` shows what the driver has seen. Look at power and seating of the "
                    "card", "the card can be used again")
    unset = f"unset {VISIBLE_DEVICES}"
    try:
        visible = select_visible(machine.cards, machine.environ)
    except DevicePlanError as error:
        yield Issue(SERIOUS, f"{VISIBLE_DEVICES} cannot be used", str(error), unset, CPU_SPEED)
        return
    hidden = ", ".join(f"GPU {card.physical_id}" for card in machine.cards if card not in visible)
    if hidden:
        yield Issue(NOTE if visible else SERIOUS, f"{VISIBLE_DEVICES} hides {hidden}",
                    f"{VISIBLE_DEVICES}={machine.environ.get(VISIBLE_DEVICES)}", unset,
                    "a second card for preparing" if visible else CPU_SPEED)
    for card in visible:
        if card.free_mib is not None and card.total_mib and card.free_mib < card.total_mib / 2:
            yield Issue(WORTH_CHANGING, f"GPU {card.physical_id} is used by others",
                        f"{card.free_mib} MB of {card.total_mib} MB are free",
                        "nvidia-smi    # shows who uses it", "room for larger batches")


def _check_links(config: XTTSConfig, links: Sequence[CardLink]) -> Iterator[Issue]:
    """Issues of how cards are connected: worth changing between cards that the run asks for, which may also be none."""
    if config.training.model_gpus is not None:
        used, given = set(parse_gpu_ids(config.training.model_gpus)), "--model-gpus"
    else:
        used = {id for id in (config.data.data_gpu, config.data.model_gpu) if id is not None}
        given = "--data-gpu and --model-gpu"
    for link in links:
        if link.is_slow:
            is_used = {link.first, link.second} <= used
            yield Issue(WORTH_CHANGING if is_used else NOTE,
                        f"GPU {link.first} and GPU {link.second} are far apart ({link.connection})", link.explain(),
                        f"train on one card: leave out {given}" if is_used
                        else "none while one card trains; `--mode auto` measures whether two would pay",
                        "no copies over the slow path")


def check_environment(environ: Mapping[str, str]) -> Iterator[Issue]:
    """Issues of variables that change how TensorFlow works."""
    speed = "full speed of the device"
    for name, value, effect, gain in (
        (ALLOCATOR, "cuda_malloc_async", "this allocator ignores memory limits, so isolation is refused", "--enable-memory-isolation works"),
        (ONEDNN, "0", "processors use TensorFlow's slower kernels", speed),
        ("CUDA_LAUNCH_BLOCKING", "1", "every kernel is waited for: nothing overlaps", speed),
        ("TF_CUDNN_DETERMINISTIC", "1", "slower kernels are chosen", speed),
        ("TF_DETERMINISTIC_OPS", "1", "slower kernels are chosen", speed),
    ):
        if environ.get(name) == value:
            yield Issue(WORTH_CHANGING, f"{name}={value} is set", effect, f"unset {name}", gain)


def check_config(config: XTTSConfig, cards: Sequence[Card], processors: int) -> Iterator[Issue]:
    """Issues of a configuration, with the cards and processors that a run may use. What only matters on a card needs one."""
    data, workers = config.data, config.data.num_workers
    if cards:
        yield from _check_batch(config, max(card.total_mib or 0 for card in cards))
    if cards and data.mixed_precision == "float32":
        yield Issue(WORTH_CHANGING, "The model computes in float32",
                    "data.mixed_precision is float32: tensor cores stay unused, and activations take twice the memory",
                    "--mixed-precision    # data.mixed_precision: mixed_float16",
                    f"about half the memory of activations; speed {MEASURE_FIRST}")
    if workers == 0 and processors > 1:
        yield Issue(WORTH_CHANGING, "Nothing is read ahead by other processes",
                    f"data.num_workers is 0; the host has {processors} processors",
                    f"--num-workers {min(USUAL_READERS, processors)}", "reading runs beside training")
    if data.pipeline_buffer_size < FEW_BATCHES_AHEAD:
        yield Issue(WORTH_CHANGING, "Few batches are read ahead",
                    f"data.pipeline_buffer_size is {data.pipeline_buffer_size}: a slow moment of the disk is felt at once",
                    "--buffer-size 50    # data.pipeline_buffer_size: 50", "steadier steps")
    if not data.pad_to_fixed_length:
        yield Issue(SERIOUS, "Static shapes are off",
                    "data.pad_to_fixed_length is false: almost every batch has a shape of its own, and each is traced, which takes "
                    "seconds", "--enable-static-shapes    # data.pad_to_fixed_length: true", "no tracing after the first batches")


def _check_batch(config: XTTSConfig, total_mib: int) -> Iterator[Issue]:
    data, accumulation = config.data, config.training.gradient_accumulation_steps
    # The table is from large to small, the start batches are from small to large; the smallest also serves smaller cards.
    larger = sum(total_mib < at_least for at_least, _ in CARDS_BY_TOTAL_MIB)
    start = START_BATCHES[config.model.size][max(0, len(CARDS_BY_TOTAL_MIB) - 1 - larger)]
    # A fine-tuned model keeps its own small batches and adds many of them up.
    if total_mib and not config.training.init_from and data.batch_size * 2 <= start:
        keeps = f" --grad-accum {max(1, accumulation * data.batch_size // start)}" if accumulation > 1 else ""
        yield Issue(WORTH_CHANGING, "The batch is small for the card",
                    f"{data.batch_size} clips of a {config.model.size} model on {total_mib} MB, where {start} are a usual start",
                    f"--batch-size {start}{keeps}", f"fewer, larger kernels: {MEASURE_FIRST}")


def check_corpus(facts: CorpusFacts, batch_size: int, accumulation: int) -> Iterator[Issue]:
    """Issues of a corpus in batches of so many clips, so many of which make up an update."""
    wav = f"-ac 1 -ar {SAMPLE_RATE_HZ} -c:a pcm_s16le"
    slow = [(ending, clips) for ending, clips in facts.formats if ending in SLOW_FORMATS]
    if sum(clips for _, clips in slow) / facts.clips > NOTABLE_SHARE:
        yield Issue(WORTH_CHANGING, "Many recordings are compressed, which costs processor time in every epoch",
                    ", ".join(f"{clips} clips in {ending}" for ending, clips in slow),
                    f'for f in wavs/*{slow[0][0]}; do ffmpeg -i "$f" {wav} "${{f%.*}}.wav"; done',
                    "reading without decoding; matters where the speed test finds loading slow")
    other = [(rate, files) for rate, files in facts.rates_hz if rate != SAMPLE_RATE_HZ]
    if facts.probed and sum(files for _, files in other) / facts.probed > NOTABLE_SHARE:
        found = ", ".join(f"{files} of {facts.probed} files at {rate} Hz" for rate, files in other[:3])
        yield Issue(NOTE, "Recordings are resampled whenever they are read", f"{found}; the model needs {SAMPLE_RATE_HZ} Hz",
                    f"ffmpeg -i IN.wav {wav} OUT.wav, for all files once", "less processor time per clip")
    if facts.padding > MUCH_PADDING:
        smaller = split_batch(batch_size, accumulation)
        yield Issue(WORTH_CHANGING if smaller else NOTE, "Much of what is computed is padding",
                    f"{facts.padding:.0%} of the audio in batches of {batch_size}",
                    smaller or "none: a batch of one clip cannot be smaller",
                    f"at most {facts.padding:.0%} of the computation", facts.padding)
    if facts.longest_s > WIDE_SPREAD * facts.median_s and facts.p95_s < SHORTER * facts.longest_s:
        yield Issue(NOTE, "A few clips are much longer than the others: they decide how much memory a batch takes",
                    f"half are up to {facts.lengths}", f"--max-clip-seconds {facts.p95_s:.3g}",
                    "larger batches in the same memory, steadier steps")


def check_cards(cards: Sequence[CardSummary]) -> Iterator[Issue]:
    """What holds the clocks of cards down."""
    cooling = "better cooling: clean fans, free the intake, more distance between cards"
    for card in cards:
        remedies = {
            "temperature": cooling, "temperature (hardware)": cooling,
            "power limit": f"sudo nvidia-smi -i {card.physical_id} -pl WATTS    # within what supply and cooling bear",
            "clocks set by the user": f"sudo nvidia-smi -i {card.physical_id} -rgc",
        }
        gain = "unknown: the driver does not tell the clocks"
        if card.clock_mhz is not None and card.max_clock_mhz:
            gain = f"at most {format_share(max(0.0, 1 - card.clock_mhz / card.max_clock_mhz))} more clock"
        for reason in card.throttled_by or ():
            # A card at its power limit works as hard as it may: that is how a busy one looks.
            yield Issue(NOTE if reason == "power limit" else WORTH_CHANGING,
                        f"GPU {card.physical_id} runs below its full clock: {reason}", card.describe(),
                        remedies.get(reason, "look at supply and connectors of the card"), gain)


def describe_rule(rule: BrokenRule, *, is_rehearsal: bool) -> Issue:
    """A rule that a profile breaks. In a rehearsal none is serious: it shares processors that no card would."""
    return Issue(SERIOUS if rule.share > SERIOUS_SHARE and not is_rehearsal else WORTH_CHANGING,
                 rule.title.capitalize().replace("Gpu", "GPU"), rule.evidence, rule.advice[0],
                 f"at most {format_share(rule.share)} of the step time", rule.share)


def _explain_failure(observation: str, error: Exception) -> Issue:
    return Issue(SERIOUS, observation, str(error), "do what the evidence says, then diagnose again", "it runs")


# fmt: on


def format_diagnosis_json(diagnosis: Diagnosis) -> str:
    """The facts; unknown values are null."""
    corpus, profile = diagnosis.corpus, diagnosis.profile
    facts: dict[str, Any] = {
        "is_serious": diagnosis.is_serious,
        "machine": [*describe_hardware(Path.cwd()), *describe_software()],
        "issues": [asdict(issue) for issue in diagnosis.issues],
        "software": asdict(diagnosis.software),
        "cards": [asdict(card) for card in diagnosis.machine.cards],
        "links": [asdict(link) for link in diagnosis.links],
        "settings": dict(diagnosis.settings),
        "corpus": None if corpus is None else asdict(corpus),
        "speed": None,
        "live": [asdict(card) for card in summarise_cards(diagnosis.samples)],
        "card_problem": diagnosis.card_problem,
    }
    if profile is not None:
        costs = {str(part): asdict(cost) for part, cost in profile.costs.items()}
        facts["speed"] = {"step_s": profile.step_s, "synchronised": asdict(profile.times), "costs": costs}
    return json.dumps(facts, indent=1, ensure_ascii=False)


def format_diagnosis(diagnosis: Diagnosis) -> str:
    """The whole report, in plain text within 80 columns."""
    parts = []
    for title, rows in _list_sections(diagnosis):
        indent = max([12, *(len(name) + 2 for name, _ in rows)])
        parts.append("\n".join([title, *(line for name, text in rows for line in _wrap(name, text, indent=indent))]))
    found = len(diagnosis.issues)
    parts.append(f"ISSUES ({found}), the most pressing first" if found else "NO ISSUES FOUND")
    for number, issue in enumerate(diagnosis.issues, start=1):
        lines = _wrap(f"{number}", f"[{issue.severity}] {issue.observation}", indent=4)
        for title, text in (("Evidence", issue.evidence), ("Remedy", issue.remedy), ("Gain", issue.gain)):
            lines += _wrap(f"    {title}", text, indent=14)
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _list_sections(diagnosis: Diagnosis) -> Iterator[tuple[str, Rows]]:
    software, corpus, profile = diagnosis.software, diagnosis.corpus, diagnosis.profile
    rows = [("System", f"{software.system}, Python {software.python}"), ("TensorFlow", software.build)]
    rows.append(("Driver", software.driver or software.driver_problem or UNKNOWN))
    for library in software.libraries:
        found = "found" if library.problem is None else "missing"
        rows.append(("", f"{library.file:<22}{found:<9}{library.name}"))
    yield "SOFTWARE", rows
    yield "DEVICES", _list_devices(diagnosis)
    yield "SETTINGS", [*diagnosis.settings.items()]
    if corpus is None:
        yield "CORPUS\nnot looked at: see the issues", []
    else:
        rates = ", ".join(f"{files} at {rate} Hz" for rate, files in corpus.rates_hz[:3]) or UNKNOWN
        formats = (f"{clips} {ending or 'without ending'}" for ending, clips in corpus.formats[:5])
        rows = [("Clips", f"{corpus.clips}, {format_duration(corpus.seconds)}; {corpus.set_aside} set aside")]
        rows += [("Formats", ", ".join(formats)), ("Rates", f"{rates} ({corpus.probed} files looked at)")]
        rows.append(("Lengths", f"half up to {corpus.lengths}"))
        rows.append(("Padding", f"{format_share(corpus.padding)} of the audio, in {corpus.shapes} batch shapes"))
        yield "CORPUS", rows
    if profile is None:
        yield "SPEED TEST\nnot run", []
    else:
        step, p50, p95 = map(format_step_time, (profile.step_s, profile.times.p50_s, profile.times.p95_s))
        counted = f"{len(profile.free)} + {profile.times.steps} batches in {profile.run.mode} mode on {profile.run.model_device}"
        rows = [("Step", f"{step} as in a run; waited for, p50 {p50}, p95 {p95}; {counted}")]
        rows.append(("Parts", ", ".join(f"{part} {format_share(profile.costs[part].share)}" for part in StepPart)))
        rows.append(("Headspace", f"{format_share(profile.headspace)} of a step: a faster pipeline could gain no more"))
        rows += [("Launches", profiling.describe_launches(profile))] if profile.launches is not None else []
        yield "SPEED TEST", rows + [("Note", note) for note in profile.run.notes]
    live = summarise_cards(diagnosis.samples)
    rows = [(f"GPU {card.physical_id}", card.describe()) for card in live]
    if diagnosis.card_problem or not live:
        rows.append(("GPUs", f"{UNKNOWN}: {diagnosis.card_problem or 'no card takes part'}"))
    yield "LIVE", [*rows, ("Host", summarise_host(diagnosis.samples).describe())]


def _list_devices(diagnosis: Diagnosis) -> Rows:
    scan, rows = diagnosis.machine.scan, []
    for card in scan.cards:
        free, total = (UNKNOWN if mib is None else f"{mib} MB" for mib in (card.free_mib, card.total_mib))
        rows.append((f"GPU {card.physical_id}", f"{card.name}, {free} free of {total}"))
    rows += [(f"GPU {physical_id}", reason) for physical_id, reason in scan.lost]
    rows += [] if rows else [("GPUs", scan.problem or "none")]
    rows += [("Link", link.explain()) for link in diagnosis.links]
    return [*rows, ("Host", f"{diagnosis.machine.host_free_mib} MB of memory free")]

"""What is wrong with driver, libraries, TensorFlow, visibility and environment, each with its exact fix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from myxtts.devices.environment import ALLOCATOR, VISIBLE_DEVICES, select_visible
from myxtts.devices.machine import Machine
from myxtts.devices.topology import Link
from myxtts.errors import DevicePlanError
from myxtts.monitoring.health import Issue, Severity
from myxtts.monitoring.software_facts import DRIVER_LIBRARY, SoftwareFacts

INSTALL = "pip install 'tensorflow[and-cuda]'"
INSTALL_CPU = "pip install tensorflow"
CPU_SPEED = "the model trains on the card, no longer on the processor"


def check_tensorflow(facts: SoftwareFacts, machine: Machine) -> Iterator[Issue]:
    """The issue of a machine without TensorFlow, which not even a rehearsal does without."""
    if facts.tensorflow is None:
        yield Issue(
            Severity.SERIOUS,
            "TensorFlow is not installed: nothing can be trained, rehearsed or measured",
            "Python finds no package of that name",
            INSTALL if machine.cards else INSTALL_CPU,
            "training runs",
        )


def check_software(facts: SoftwareFacts, machine: Machine) -> Iterator[Issue]:
    """Issues of what a card needs. Without a card only that is one: libraries would help nothing."""
    if not machine.cards:
        yield _explain_no_card(facts, machine)
        return
    build = facts.tensorflow
    if build is not None and build.is_cuda_build is False:
        yield Issue(
            Severity.SERIOUS,
            f"TensorFlow {build.version} cannot use a GPU",
            f"it was built without CUDA; the machine has {len(machine.cards)} card(s)",
            f"pip uninstall -y tensorflow tensorflow-cpu && {INSTALL}",
            CPU_SPEED,
        )
    missing = [library for library in facts.missing if library.file != DRIVER_LIBRARY]
    if missing:
        yield Issue(
            Severity.SERIOUS,
            "CUDA libraries that TensorFlow needs are missing: it trains on the CPU without a word",
            f"{', '.join(library.file for library in missing)} ({missing[0].problem})",
            INSTALL,
            CPU_SPEED,
        )
    yield from (
        Issue(
            Severity.SERIOUS,
            "The driver's library cannot be loaded",
            library.problem or "",
            "in a container: start it with --gpus all; else install the NVIDIA driver again and restart",
            CPU_SPEED,
        )
        for library in facts.missing
        if library.file == DRIVER_LIBRARY
    )


def check_devices(machine: Machine) -> Iterator[Issue]:
    """Issues of cards that do not answer, are hidden, or are used by others."""
    for physical_id, reason in machine.scan.lost:
        yield Issue(
            Severity.SERIOUS,
            f"GPU {physical_id} does not answer",
            reason,
            "restart the machine; `dmesg | grep -i xid` shows what the driver has seen. Look at power and seating of the card",
            "the card can be used again",
        )
    try:
        visible = select_visible(machine.cards, machine.environ)
    except DevicePlanError as error:
        yield Issue(
            Severity.SERIOUS, f"{VISIBLE_DEVICES} cannot be used", str(error), f"unset {VISIBLE_DEVICES}", CPU_SPEED
        )
        return
    hidden = [card for card in machine.cards if card not in visible]
    if hidden:
        names = ", ".join(f"GPU {card.physical_id}" for card in hidden)
        yield Issue(
            Severity.NOTE if visible else Severity.SERIOUS,
            f"{VISIBLE_DEVICES} hides {names}",
            f"{VISIBLE_DEVICES}={machine.environ.get(VISIBLE_DEVICES)}",
            f"unset {VISIBLE_DEVICES}",
            "a second card for preparing" if visible else CPU_SPEED,
        )
    for card in visible:
        if card.free_mib is not None and card.total_mib and card.free_mib < card.total_mib / 2:
            yield Issue(
                Severity.WORTH_CHANGING,
                f"GPU {card.physical_id} is used by others",
                f"{card.free_mib} MB of {card.total_mib} MB are free",
                "nvidia-smi    # shows who uses it",
                "room for larger batches",
            )


def check_environment(environ: Mapping[str, str]) -> Iterator[Issue]:
    """Issues of variables that change how TensorFlow works."""
    if environ.get(ALLOCATOR) == "cuda_malloc_async":
        yield Issue(
            Severity.WORTH_CHANGING,
            f"{ALLOCATOR}=cuda_malloc_async is set",
            "this allocator ignores memory limits, so isolation is refused",
            f"unset {ALLOCATOR}",
            "--enable-memory-isolation works",
        )
    switched_off = {
        "TF_ENABLE_ONEDNN_OPTS": ("0", "processors use TensorFlow's slower kernels"),
        "CUDA_LAUNCH_BLOCKING": ("1", "every kernel is waited for: nothing overlaps"),
        "TF_CUDNN_DETERMINISTIC": ("1", "slower kernels are chosen"),
        "TF_DETERMINISTIC_OPS": ("1", "slower kernels are chosen"),
    }
    for name, (value, effect) in switched_off.items():
        if environ.get(name) == value:
            yield Issue(
                Severity.WORTH_CHANGING, f"{name}={value} is set", effect, f"unset {name}", "full speed of the device"
            )


def check_links(links: Sequence[Link], used: Sequence[int], given: str) -> Iterator[Issue]:
    """Issues of how cards are connected.

    Args:
        used: physical ids of the cards that the run asks for; none where it takes what is there.
        given: the flags that ask for them.
    """
    for link in links:
        if not link.is_slow:
            continue
        is_used = {link.first, link.second} <= set(used)
        yield Issue(
            Severity.WORTH_CHANGING if is_used else Severity.NOTE,
            f"GPU {link.first} and GPU {link.second} are far apart ({link.connection})",
            link.explain(),
            f"train on one card: leave out {given}"
            if is_used
            else "none while one card trains; `--mode auto` measures whether two would pay",
            "no copies over the slow path",
        )


def _explain_no_card(facts: SoftwareFacts, machine: Machine) -> Issue:
    if machine.scan.problem:
        return Issue(
            Severity.SERIOUS,
            "The NVIDIA driver is installed but does not answer",
            machine.scan.problem,
            "sudo modprobe nvidia; after an update of the driver restart the machine",
            CPU_SPEED,
        )
    return Issue(
        Severity.SERIOUS,
        "This machine has no NVIDIA GPU that can be seen: training runs on the CPU",
        facts.driver_problem or "the driver counts no card",
        "install the NVIDIA driver (Ubuntu: sudo ubuntu-drivers install), or try both roles with --rehearsal --mode dual; "
        "in a container: --gpus all",
        CPU_SPEED,
    )

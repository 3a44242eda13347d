"""What the NVIDIA driver says about the cards, through nvidia-ml-py. The only user of these bindings.

NVML counts cards by PCI bus, so its index is the id `nvidia-smi` shows: the *physical id* used everywhere here.
A value the driver does not know is None, never 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NewType, TypeVar

import pynvml

from myxtts.errors import NvmlError

PhysicalId = NewType("PhysicalId", int)
"""A card as `nvidia-smi` counts them; never an index into TensorFlow's device list."""

MIB = 1024 * 1024
T = TypeVar("T")

# The driver is there but has no answer to this question. "Invalid argument" is how it answers for an NVLink
# number beyond the card's last link.
_UNKNOWN = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
)


@dataclass(frozen=True)
class MemoryReading:
    """Memory of one card at one moment, in MiB; what the driver cannot tell is None."""

    physical_id: PhysicalId
    total_mib: int | None
    used_mib: int | None
    free_mib: int | None


@dataclass(frozen=True)
class CardActivity:
    """What one card does at one moment; what the driver cannot tell is None."""

    physical_id: PhysicalId
    utilization_percent: int | None
    """Share of the driver's last sampling period in which any kernel ran: high for many small kernels, too. Power tells more."""
    used_mib: int | None
    power_w: float | None
    power_limit_w: float | None
    clock_mhz: int | None
    max_clock_mhz: int | None
    temperature_c: int | None
    throttled_by: tuple[str, ...] | None
    """Why the clocks are lower than they could be; empty when nothing holds them down."""


@dataclass(frozen=True)
class Card:
    """One GPU of the machine."""

    physical_id: PhysicalId
    name: str
    uuid: str
    bus_id: str
    total_mib: int | None
    free_mib: int | None
    capability: tuple[int, int] | None = None
    """Which instructions it understands: (8, 6) is an RTX 3090, (12, 0) an RTX 5090."""


@dataclass(frozen=True)
class CardScan:
    """All cards that answer, and why others do not."""

    cards: tuple[Card, ...]
    lost: tuple[tuple[PhysicalId, str], ...]
    """Cards the driver counts but cannot reach, with its reason."""
    problem: str | None
    """Why there are no cards although the driver's library is installed; None when there is nothing to report."""


class Nvml:
    """An open connection to the driver. Use as a context manager; none of its calls allocates GPU memory."""

    def __enter__(self) -> Nvml:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NvmlError(f"The NVIDIA driver does not answer: {error}.") from error
        return self

    def __exit__(self, *exception: object) -> None:
        pynvml.nvmlShutdown()

    def count_cards(self) -> int:
        """How many cards the driver counts, those that do not answer included."""
        return int(self._ask(lambda: pynvml.nvmlDeviceGetCount(), "the number of cards"))

    def read_driver_version(self) -> str | None:
        return self._ask_or_unknown(lambda: _text(pynvml.nvmlSystemGetDriverVersion()))

    def read_card(self, physical_id: PhysicalId) -> Card:
        """Identity and memory of a card. Raises `NvmlError` when the card does not answer."""
        handle = self._find_handle(physical_id)
        memory = self.read_memory(physical_id)
        return Card(
            physical_id=physical_id,
            name=_text(self._ask(lambda: pynvml.nvmlDeviceGetName(handle), f"the name of GPU {physical_id}")),
            uuid=_text(self._ask(lambda: pynvml.nvmlDeviceGetUUID(handle), f"the UUID of GPU {physical_id}")),
            bus_id=self._ask_or_unknown(lambda: _text(pynvml.nvmlDeviceGetPciInfo(handle).busId)) or "",
            total_mib=memory.total_mib,
            free_mib=memory.free_mib,
            capability=self._ask_or_unknown(lambda: tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle))),
        )

    def read_memory(self, physical_id: PhysicalId) -> MemoryReading:
        """Total, used and free memory of a card."""
        handle = self._find_handle(physical_id)
        info = self._ask_or_unknown(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
        if info is None:
            return MemoryReading(physical_id, None, None, None)
        return MemoryReading(physical_id, int(info.total) // MIB, int(info.used) // MIB, int(info.free) // MIB)

    def read_process_mib(self, physical_id: PhysicalId, pid: int) -> int | None:
        """Memory a process holds on a card, its CUDA context included; None when the driver does not say."""
        handle = self._find_handle(physical_id)
        processes = self._ask_or_unknown(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle))
        for process in processes or []:
            if process.pid == pid and process.usedGpuMemory is not None:
                return int(process.usedGpuMemory) // MIB
        return None

    def read_activity(self, physical_id: PhysicalId) -> CardActivity:
        """Utilisation, power, clocks and what holds them down."""
        handle = self._find_handle(physical_id)
        power_mw = self._ask_or_unknown(lambda: pynvml.nvmlDeviceGetPowerUsage(handle))
        limit_mw = self._ask_or_unknown(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle))
        # The name that old drivers know too.
        reasons = self._ask_or_unknown(lambda: int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)))
        return CardActivity(
            physical_id=physical_id,
            # Not known on WSL, MIG and old cards.
            utilization_percent=self._ask_or_unknown(lambda: int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
            used_mib=self.read_memory(physical_id).used_mib,
            power_w=None if power_mw is None else power_mw / 1000,
            power_limit_w=None if limit_mw is None else limit_mw / 1000,
            clock_mhz=self._ask_or_unknown(lambda: int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))),
            max_clock_mhz=self._ask_or_unknown(
                lambda: int(pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM))
            ),
            temperature_c=self._ask_or_unknown(
                lambda: int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
            ),
            throttled_by=None if reasons is None else tuple(name for bit, name in _REASONS.items() if reasons & bit),
        )

    def read_common_ancestor(self, first: PhysicalId, second: PhysicalId) -> int | None:
        """NVML's level of the nearest PCIe switch or bridge two cards share; `machine.read_links` names the levels."""
        a, b = self._find_handle(first), self._find_handle(second)
        return self._ask_or_unknown(lambda: int(pynvml.nvmlDeviceGetTopologyCommonAncestor(a, b)))

    def is_linked(self, first: PhysicalId, second: PhysicalId) -> bool | None:
        """Whether an active NVLink joins two cards; None when the driver does not say."""
        handle, peer = self._find_handle(first), self._find_handle(second)
        peer_bus = self._ask_or_unknown(lambda: _text(pynvml.nvmlDeviceGetPciInfo(peer).busId))
        answers = [self._leads_to(handle, link, peer_bus) for link in range(pynvml.NVML_NVLINK_MAX_LINKS)]
        known = [answer for answer in answers if answer is not None]
        return any(known) if known else None

    def _leads_to(self, handle: Any, link: int, bus_id: str | None) -> bool | None:
        if not (active := self._ask_or_unknown(lambda: bool(pynvml.nvmlDeviceGetNvLinkState(handle, link)))):
            return active
        return bus_id == self._ask_or_unknown(
            lambda: _text(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)
        )

    def _find_handle(self, physical_id: PhysicalId) -> Any:
        return self._ask(lambda: pynvml.nvmlDeviceGetHandleByIndex(physical_id), f"GPU {physical_id}")

    def _ask(self, call: Callable[[], T], what: str) -> T:
        try:
            return call()
        except pynvml.NVMLError as error:
            raise NvmlError(f"The NVIDIA driver could not tell {what}: {error}.") from error

    def _ask_or_unknown(self, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except pynvml.NVMLError as error:
            if error.value in _UNKNOWN:
                return None
            raise NvmlError(f"The NVIDIA driver failed: {error}.") from error


def scan_cards() -> CardScan:
    """Every card of the machine. No driver installed is an empty scan; a driver that fails is named in it."""
    try:
        with Nvml() as nvml:
            cards: list[Card] = []
            lost: list[tuple[PhysicalId, str]] = []
            for physical_id in map(PhysicalId, range(nvml.count_cards())):
                try:
                    cards.append(nvml.read_card(physical_id))
                except NvmlError as error:
                    lost.append((physical_id, str(error)))
            return CardScan(tuple(cards), tuple(lost), None)
    except NvmlError as error:
        if isinstance(error.__cause__, pynvml.NVMLError_LibraryNotFound):
            return CardScan((), (), None)
        return CardScan((), (), str(error))


_REASONS = {
    pynvml.nvmlClocksThrottleReasonSwPowerCap: "power limit",
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "hardware slowdown",
    pynvml.nvmlClocksThrottleReasonSwThermalSlowdown: "temperature",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "temperature (hardware)",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "power brake",
    pynvml.nvmlClocksThrottleReasonUserDefinedClocks: "clocks set by the user",
}
"""What holds clocks down although there is work. An idle card's low clocks are no throttling."""


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

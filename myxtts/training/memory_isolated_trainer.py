"""Training with memory isolation, by the names its users know."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any

from myxtts.config import XTTSConfig
from myxtts.devices import runtime
from myxtts.devices.nvml import MIB
from myxtts.devices.plan import DEFAULT_DATA_MIB, DEFAULT_MODEL_MIB, DefaultMib, DevicePlan, Mode
from myxtts.errors import DevicePlanError, NotTrainingError
from myxtts.pipeline.batch import Batch
from myxtts.pipeline.batches import PipedBatches, place_batch
from myxtts.pipeline.factory import BatchFactory
from myxtts.pipeline.threads import SLOTS, Handoff
from myxtts.training.mode import plan_run
from myxtts.training.trainer import XTTSTrainer
from myxtts.utils.gpu_memory import RoleMemory, read_role_memory

_log = logging.getLogger(__name__)


class MemoryIsolatedDualGPUTrainer(XTTSTrainer):
    """A trainer whose batches are prepared on another card, with a memory limit for each.

    After `setup_gpu_memory_isolation` both cards belong to this process. Without such a call the card that prepares belongs to
    a process of its own, which this one starts and, should it die, starts again.

    Args:
        config: what was asked for; the cards and limits given here win over its own.
        data_gpu_id: the card that prepares, as `nvidia-smi` shows it.
        model_gpu_id: the card that trains.
        data_gpu_memory_limit: in MB.
        model_gpu_memory_limit: in MB.
        enable_monitoring: log the memory of both cards when training ends.
        command: the words that started the program, for the command that resumes the run.

    Example:
        config = XTTSConfig(model={"size": "small"}, training={"checkpoint_dir": "runs/voice"})
        trainer = MemoryIsolatedDualGPUTrainer(config, data_gpu_id=0, model_gpu_id=1)
        trainer.train()
    """

    def __init__(
        self,
        config: XTTSConfig,
        data_gpu_id: int,
        model_gpu_id: int,
        data_gpu_memory_limit: int | None = DEFAULT_DATA_MIB,
        model_gpu_memory_limit: int | None = DEFAULT_MODEL_MIB,
        enable_monitoring: bool = True,
        *,
        command: Sequence[str] = (),
    ):
        limits = {"data_gpu_memory": data_gpu_memory_limit, "model_gpu_memory": model_gpu_memory_limit}
        given = {name: mib for name, mib in limits.items() if mib is not None and not isinstance(mib, DefaultMib)}
        asked = config.replace(
            data={"data_gpu": data_gpu_id, "model_gpu": model_gpu_id, "enable_memory_isolation": True, **given}
        )
        super().__init__(asked, plan=_choose_plan(asked, command), command=command)
        self._is_monitored = enable_monitoring

    @property
    def max_buffer_size(self) -> int:
        """Slots between the producer and the training: one being trained on, one in flight, one being made."""
        return SLOTS

    @property
    def pipeline_depth(self) -> int:
        """Batches on their way while one is trained on."""
        return SLOTS - 1

    @property
    def buffer_queue(self) -> Handoff[Batch] | None:
        """The three slots on the model device while training runs; None before."""
        return self._source.placed if isinstance(self._source, PipedBatches) else None

    def _preprocess_on_data_gpu(self, number: int) -> Batch:
        """The batch with a number of the stream, prepared on the data device of this process.

        A producer process prepares by the same code (`BatchFactory.make`), on a device that only it sees.
        """
        if self.plan.has_producer:
            raise DevicePlanError(f"{self.plan.data.device} belongs to the producer process, which prepares by itself.")
        if self._recipe is None or self._data is None:
            raise NotTrainingError("There is no batch to prepare: train() collects the data. Call that first.")
        with closing(BatchFactory(self._data, self._recipe)) as factory:
            return factory.make(number)

    def _async_transfer_to_model_gpu(self, prepared: Batch) -> Batch:
        """A prepared batch on the model device: what the transfer thread does with each."""
        return place_batch(prepared, self.model_device)

    def get_memory_stats(self) -> dict[str, dict[str, Any]]:
        """Per role: id, device, limit, used and peak memory in MB; None is unknown.

        Of a producer process, what it held with the last batch of the training and the most with any: nothing before that.
        """
        data, model = self.plan.data, self.plan.model
        stats = {data: self._read_producer_memory() if self.plan.has_producer else read_role_memory(data)}
        stats[model] = read_role_memory(model)
        return {str(role.role): asdict(memory) for role, memory in stats.items()}

    def _read_producer_memory(self) -> RoleMemory:
        role = self.plan.data
        sizes_bytes = (None, None) if self._run_log is None else self._run_log.read_producer_memory()
        used_mb, peak_mb = (None if size is None else round(size / MIB, 1) for size in sizes_bytes)
        if self.plan.rehearsal:
            return RoleMemory(role.physical_id, role.device, role.limit_mib, used_mb, peak_mb)
        return replace(read_role_memory(role), used_mb=used_mb, peak_mb=peak_mb, pool_mb=used_mb)

    def optimize_dataset_for_dual_gpu(self, dataset: Any, prefetch_buffer_size: int = 4) -> Any:
        """A dataset with the options that help a second card, and a prefetch to it as the last element.

        Only where the card that prepares belongs to this process; the producer process has its own pipeline.
        """
        if self.plan.has_producer:
            raise DevicePlanError(
                f"{self.plan.data.device} belongs to the producer process, which prefetches by itself. Call "
                "setup_gpu_memory_isolation first to have both cards in this process."
            )
        # Not above: it imports TensorFlow, and the runtime must do that first, with the environment set.
        from myxtts.data.dataset_optimizer import apply_aggressive_prefetching, get_optimized_dataset_options

        optimized = dataset.with_options(get_optimized_dataset_options())
        return apply_aggressive_prefetching(
            optimized, self.config.data.batch_size, self.data_device, depth=prefetch_buffer_size
        )

    def train(self) -> Any:
        result = super().train()
        self._log_pipeline_performance()
        if self._is_monitored:
            for role, stats in self.get_memory_stats().items():
                sizes = {name: stats[f"{name}_mb"] for name in ("used", "peak", "limit")}
                told = [f"{name} {'unknown' if size is None else f'{size:.0f} MB'}" for name, size in sizes.items()]
                _log.info("Memory of the %s device: %s, %s", role, stats["device"], ", ".join(told))
        return result


def _choose_plan(config: XTTSConfig, command: Sequence[str]) -> DevicePlan:
    active = runtime.active_plan()
    if active is None:
        return plan_run(config, command).plan
    wanted = (config.data.data_gpu, config.data.model_gpu)
    if active.mode is Mode.ISOLATED and (active.data.physical_id, active.model.physical_id) == wanted:
        return active
    raise DevicePlanError(
        f"The plan in force in this process ({active.mode} mode, GPU {active.data.physical_id} and {active.model.physical_id}) is "
        f"not the one asked for (GPU {wanted[0]} prepares, GPU {wanted[1]} trains). Give the ids that setup_gpu_memory_isolation got."
    )

"""All who work at the same run: one process alone, or the trainers of a cluster, each the peer of the others; and those who prepare for
them on other machines.

All walk through the same batches and train on rows of their own. What decides about the run, totals, gradients,
validation losses and requests to stop, is added up over all of them, so that all come to the same conclusions at the same step.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, astuple, replace
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from myxtts import __version__
from myxtts.cluster.exchange import Exchange
from myxtts.cluster.preparers import PreparerPool
from myxtts.cluster.ray_setup import LOCAL, join_cluster
from myxtts.cluster.trainers import TrainerSpec
from myxtts.config import XTTSConfig
from myxtts.config.settings import parse_gpu_ids
from myxtts.data.run_data import RunData
from myxtts.data.sampler import WHOLE, Failure, ReplacementJournal, RowShare
from myxtts.devices.machine import read_machine, select_visible
from myxtts.devices.plan import DevicePlan
from myxtts.devices.runtime import read_execution
from myxtts.errors import ClusterError, MachineError, RunFinishedError
from myxtts.monitoring.clock import Cause, TimeLedger
from myxtts.pipeline.batch import Batch
from myxtts.pipeline.batches import Batches, OpenRemote
from myxtts.pipeline.recipe import BatchRecipe, pack_kit
from myxtts.pipeline.threads import SLOTS, HandoffFacts, TimeLimits
from myxtts.training.model import apply_devices
from myxtts.training.resume_rules import describe_idle_workers, list_shared_settings, refuse_plan, refuse_settings
from myxtts.training.saver import CheckpointSaver
from myxtts.training.step import Gradients
from myxtts.training.stopping import StopRequests

_log = logging.getLogger(__name__)

_BROKEN = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)
"""What a sum fails with where it is another worker, or the way to it, that failed."""


class Peers:
    """All who train a run: one process by itself, or those of a cluster. Every method is called by all of them at the same places."""

    size = 1
    is_chief = True
    """Whether this one keeps the run's folder."""
    share = WHOLE
    """The rows of every batch that this one works on."""

    def __init__(self, stop: StopRequests, strategy: Any = None):
        self.stop = stop
        self._strategy = strategy

    def scope(self) -> AbstractContextManager[Any]:
        """A block that builds what all devices of this process train: a copy on each of them."""
        return nullcontext() if self._strategy is None else self._strategy.scope()

    @property
    def is_stopping(self) -> bool:
        """Whether anybody was asked to stop before the batch taken last: all must end at the same update."""
        return self.stop.signal is not None

    def take(self, source: Batches, ledger: TimeLedger) -> Batch:
        """The next batch: this worker's rows, with totals and counts of all rows. Raises what a source does."""
        # Nothing is lost where a signal ends the wait: micro-batches of a step that is not made are summed up again.
        with ledger.spend(Cause.DATA_STALL), self.stop.while_idle():
            return source.take()

    def list_waits(self) -> tuple[HandoffFacts, ...]:
        """Of each of several trainers, since the start: how long it waited for its batches, and for the others."""
        return ()

    def sum_gradients(self, gradients: Gradients) -> Gradients:
        """The gradients of all rows."""
        return gradients

    def sum_numbers(self, what: str, numbers: list[float]) -> list[float]:
        """Sums over all."""
        return numbers

    def share_start(self, saver: CheckpointSaver) -> None:
        """Progress, model and everything else that is saved become the chief's."""

    def join_failures(self, step: int, journal: ReplacementJournal) -> None:
        """Adds the failures that others have found to the chief's journal."""

    def lead(self, what: str, action: Callable[[], Any]) -> Any:
        """What the chief's action gives; the others do not act. Raises `RunFinishedError` on all of them."""
        return action()

    def require_equal(self, what: str, facts: Mapping[str, Any], advice: str) -> None:
        """Raises `ClusterError`, on every worker, where one has other facts than the chief."""


class ClusterPeers(Peers):
    """The trainers of a cluster, as one of them sees them."""

    is_stopping = False

    def __init__(self, spec: TrainerSpec, exchange: Exchange, stop: StopRequests, strategy: Any):
        super().__init__(stop, strategy)
        self._exchange = exchange
        self._own_waits = [0.0, 0.0, 0.0]
        """Seconds until this one had its batches, until the others had theirs, and in sums of gradients."""
        self._waits = [self._own_waits] * spec.size
        """Of all of them, at the last batch."""
        self._batches = 0
        self.size = spec.size
        self.is_chief = spec.is_chief
        self.share = RowShare(spec.index, spec.size)

    def require_sums(self) -> None:
        """Adds up a first number."""
        with self._naming_losses():
            (total,) = self._exchange.sum([tf.ones([])])
            assert float(total) == self.size, "every trainer counts once"

    def take(self, source: Batches, ledger: TimeLedger) -> Batch:
        # Not ended by a signal: the others wait for this batch too, and have to be met first.
        with ledger.spend(Cause.DATA_STALL), self._counting(0):
            batch = source.take()
        with ledger.spend(Cause.OTHER_WORKERS), self._counting(1):
            return self.merge(batch)

    def merge(self, batch: Batch) -> Batch:
        """A batch with the totals of all its rows. Hears whether anybody was asked to stop."""
        facts, wants_stop = batch.info.facts, self.stop.signal is not None
        own = [wants_stop, *batch.info.totals, facts.clips, facts.samples, facts.padded_samples]
        told = self._gather(f"batch {facts.number}", [own, self._own_waits])
        stops, *totals, clips, samples, padded = _add_columns(each for each, _ in told)
        self._waits, self._batches = [waits for _, waits in told], self._batches + 1
        self.is_stopping = stops > 0
        whole = facts._replace(clips=int(clips), samples=int(samples), padded_samples=int(padded))
        tensors = {**batch.tensors, "totals_2": tf.constant(totals, tf.float32)}
        return Batch(tensors, replace(batch.info, facts=whole))

    def list_waits(self) -> tuple[HandoffFacts, ...]:
        # A sum takes all of them equally long, but for the time that one waits in it for another.
        sum_s = min(in_sums_s for _, _, in_sums_s in self._waits)
        return tuple(
            HandoffFacts(f"Trainer {index}", self._batches, others_s + in_sums_s - sum_s, data_s, 0.0)
            for index, (data_s, others_s, in_sums_s) in enumerate(self._waits)
        )

    @contextmanager
    def _counting(self, which: int) -> Iterator[None]:
        """Counts the time within among the waits of this trainer."""
        began_s = time.perf_counter()
        yield
        self._own_waits[which] += time.perf_counter() - began_s

    def sum_gradients(self, gradients: Gradients) -> Gradients:
        with self._naming_losses(), self._counting(2):
            flat = tf.nest.flatten(gradients)
            return Gradients(*tf.nest.pack_sequence_as(gradients, self._exchange.sum(flat)))

    def sum_numbers(self, what: str, numbers: list[float]) -> list[float]:
        return _add_columns(self._gather(what, numbers))

    def share_start(self, saver: CheckpointSaver) -> None:
        progress = saver.progress
        failures = [astuple(failure) for failure in saver.journal.list_failures(progress.step)]
        told = self._gather("start", [asdict(progress), failures, saver.saved_step])[0]
        saver.journal = ReplacementJournal(Failure(*failure) for failure in told[1])
        saver.saved_step = told[2]
        with self._naming_losses():
            self._exchange.spread(variable for _, variable in saver.trained.list_variables())
        saver.progress.restore(told[0])

    def join_failures(self, step: int, journal: ReplacementJournal) -> None:
        own = [astuple(failure) for failure in journal.list_failures(step)]
        for failures in self._gather(f"failures before step {step}", own):
            for failure in failures:
                journal.record(Failure(*failure))

    def require_equal(self, what: str, facts: Mapping[str, Any], advice: str) -> None:
        told = self._gather(what, dict(facts))
        problems = [_compare(index, own, told[0]) for index, own in enumerate(told)]
        if any(problems):
            raise ClusterError(f"All trainers must have the same {what}, but {next(filter(None, problems))}. {advice}")

    def lead(self, what: str, action: Callable[[], Any]) -> Any:
        told: dict[str, Any] = {}
        if self.is_chief:
            try:
                told = {"given": action()}
            except RunFinishedError as error:
                told = {"finished": [str(error), str(error.folder), error.step]}
        told = self._gather(what, told)[0]
        if "finished" in told:
            text, folder, step = told["finished"]
            raise RunFinishedError(text, Path(folder), step)
        return told["given"]

    def _gather(self, what: str, own: Any) -> list[Any]:
        """What every trainer has to say about something, in their order."""
        with self._naming_losses():
            told = self._exchange.gather([what, own])
        assert all(each[0] == what for each in told), f"trainers are at different places: {[each[0] for each in told]}"
        return [each[1] for each in told]

    @contextmanager
    def _naming_losses(self) -> Iterator[None]:
        """What fails because another trainer is lost is told as that."""
        try:
            yield
        except _BROKEN as error:
            raise MachineError(
                f"Another trainer is lost, or the way to it: {str(error).partition(chr(10))[0]}. Started again, all go on from the last "
                "checkpoint."
            ) from error


def _add_columns(rows: Iterable[list[float]]) -> list[float]:
    return [math.fsum(column) for column in zip(*rows, strict=True)]


def _compare(index: int, facts: Mapping[str, Any], of_chief: Mapping[str, Any]) -> str | None:
    differing = [key for key in of_chief if facts.get(key) != of_chief[key]]
    if not differing:
        return None
    shown = ", ".join(f"{key} is {facts.get(key)!r} instead of {of_chief[key]!r}" for key in differing[:5])
    return f"trainer {index} differs from the chief: {shown}"


def open_strategy(plan: DevicePlan) -> Any:
    """What has all devices of a plan train in this process; None where one does. Make it after the plan was applied."""
    devices = [role.device for role in plan.trainers]
    if len(devices) == 1:
        return None
    if not plan.model.is_gpu:
        # The ring that TensorFlow would take between CPUs is for those of several machines.
        return tf.distribute.MirroredStrategy(devices, cross_device_ops=tf.distribute.ReductionToOneDevice())
    # Cards meet through a port of NCCL's, which else would be any interface's. It reads this at the first sum.
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "=lo")
    return tf.distribute.MirroredStrategy(devices)


@contextmanager
def gather_peers(
    config: XTTSConfig, plan: DevicePlan, spec: TrainerSpec | None, stop: StopRequests, ledger: TimeLedger
) -> Iterator[Peers]:
    """All who train, with the device plan in force. Whatever ends the block ends the others too."""
    if spec is None:
        with ledger.spend(Cause.START_UP, "setting up the devices"):
            apply_devices(config, plan)
            peers = Peers(stop, open_strategy(plan))
        yield peers
        return
    with ledger.spend(Cause.START_UP, "meeting the other trainers"):
        refuse_settings(config)
        refuse_plan(plan)
        # Nothing may make a tensor before.
        apply_devices(config, plan)
        exchange = Exchange(spec, has_gpu=plan.model.is_gpu)
        members = ClusterPeers(spec, exchange, stop, open_strategy(plan))
        members.require_sums()
        versions = {"myxtts": __version__, "tensorflow": tf.__version__}
        members.require_equal("versions", versions, "Install the same ones everywhere.")
        members.require_equal("settings", list_shared_settings(config), "Give every trainer the same flags and YAML.")
        idle = describe_idle_workers(config, spec.size)
        if idle is not None and spec.is_chief:
            _log.warning("%s", idle)
    yield members


@contextmanager
def open_preparers(config: XTTSConfig, plan: DevicePlan) -> Iterator[OpenRemote | None]:
    """What opens the batches of preparers, for as long as the block lasts; None where the run has none.

    Args:
        plan: of this process. Preparers that it starts on this machine do not see the cards that train.
    """
    if not config.training.preparers:
        yield None
        return
    with join_for_preparers(config, plan) as ray:
        # Of several trainers each has a share of them.
        yield partial(open_pool, ray, config.training.preparers // config.training.trainers)


@contextmanager
def join_for_preparers(config: XTTSConfig, plan: DevicePlan | None = None) -> Iterator[Any]:
    """The module `ray`, while this process is part of the cluster that a configuration names."""
    address, count, gpus = config.training.cluster, config.training.preparers, None
    assert address is not None, "a rule of the configuration"
    if plan is not None and plan.model.is_gpu:
        machine, training = read_machine(), {role.physical_id for role in plan.trainers}
        cards = select_visible(machine.cards, machine.environ)
        gpus = ",".join(card.uuid for card in cards if card.physical_id not in training)
    with join_cluster(address, cpus=max(os.cpu_count() or 1, count), visible_gpus=gpus) as ray:
        where = "this machine alone" if address == LOCAL else address
        among = f", divided among {config.training.trainers} trainers" if config.training.trainers > 1 else ""
        _log.info("Preparers: up to %d%s, on the Ray cluster of %s.", count, among, where)
        yield ray


def open_pool(ray: Any, count: int, recipe: BatchRecipe, data: RunData) -> PreparerPool:
    """The batches of a run, made by so many preparers."""
    order = recipe.make_order(data)
    return PreparerPool(
        ray,
        pack_kit(recipe, data, read_execution(), "myxtts.pipeline.factory:open_task"),
        range(order.first_number, order.end_number),
        count,
        uses_gpu=choose_gpu(ray, recipe.config),
        limits=TimeLimits.from_setting(recipe.config.training.watchdog_seconds),
        rows=max(bucket.rows for bucket in recipe.list_buckets(data)),
        room=max(SLOTS, 2 * data.sampler.accumulation),
        # Who makes the beginning of a step has read the clips of all of it.
        follows=lambda number: order.find_place(number).position.micro_batch > 0,
    )


def choose_gpu(ray: Any, config: XTTSConfig) -> bool:
    """Whether preparers are to have a GPU each: where the cluster has any, in no rehearsal. Beside several trainers, which are actors
    too and have theirs first, only where enough are left for all preparers: else those of one trainer would leave none to another's."""
    training, gpus = config.training, int(ray.cluster_resources().get("GPU", 0))
    if training.rehearsal or training.trainers == 1:
        return gpus > 0 and not training.rehearsal
    held = training.trainers * len(parse_gpu_ids(training.model_gpus or "0"))
    if 0 < gpus < held + training.preparers:
        text = "Preparers use processors: of the cluster's %d GPUs trainers want %d, and %d preparers need one each."
        _log.info(text, gpus, held, training.preparers)
    return gpus >= held + training.preparers

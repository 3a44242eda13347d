"""Clips from their files into memory: the load of one, loads that are under way, and who does them.

A reader starts many loads ahead and finishes them in order. Whoever does the work, the samples are the same."""

from __future__ import annotations

import logging
import mmap
import os
import weakref
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from myxtts.audio.reading import PLAIN_SAMPLE_BYTES, read_clip_into
from myxtts.config import DataConfig
from myxtts.data.buckets import BucketPlan
from myxtts.data.corpus import Corpus
from myxtts.data.task_processes import Crashed, ProcessTask, TaskJob, TaskPool, Work, count_cores
from myxtts.devices.machine import read_free_memory_bytes
from myxtts.errors import ClipError, DropReason, MachineError
from myxtts.units import SAMPLE_RATE_HZ

_log = logging.getLogger(__name__)

Samples = NDArray[np.float32]
"""(rows, samples), or of one row."""


class ClipFile(NamedTuple):
    """A clip's file as the scan found it."""

    path: str
    samples: int
    """At the model's rate."""
    size_bytes: int
    mtime_ns: int


def find_clip_file(corpus: Corpus, clip: int) -> ClipFile:
    return ClipFile(
        # Not by joining paths: that would cost as much as reading a small clip.
        f"{corpus.root}/{corpus.audio[clip]}",
        int(corpus.samples[clip]),
        int(corpus.size_bytes[clip]),
        int(corpus.mtime_ns[clip]),
    )


class LoadFailure(NamedTuple):
    """Why a clip could not be used now, though its scan found nothing wrong with it."""

    reason: DropReason
    detail: str


def is_unchanged(file: ClipFile) -> bool:
    """Whether a file is still the one that was scanned. Raises `OSError` where it is gone."""
    status = os.stat(file.path)
    return (status.st_size, status.st_mtime_ns) == (file.size_bytes, file.mtime_ns)


def load_clip(file: ClipFile, row: Samples) -> LoadFailure | None:
    """Fill a row with a clip and zeros behind it. Given a failure, what is in the row has no meaning."""
    try:
        if not is_unchanged(file):
            return LoadFailure(
                DropReason.CHANGED, "the file is not the one that was scanned; start again to scan it anew"
            )
        samples = read_clip_into(file.path, row)
    except ClipError as error:
        return LoadFailure(error.reason, str(error).removeprefix(f"{file.path}: "))
    except OSError as error:
        is_gone = isinstance(error, FileNotFoundError)
        reason = DropReason.MISSING if is_gone else DropReason.UNREADABLE
        return LoadFailure(reason, f"cannot be read: {error.strerror}")
    if samples != file.samples:
        return LoadFailure(DropReason.CHANGED, f"has {samples} samples, but had {file.samples} when it was scanned")
    row[samples:] = 0.0
    return None


def make_loader(memory_fd: int) -> Work:
    """The work of a reader process: from a `ClipFile`'s values and the row's first and last sample in the shared memory to a
    `LoadFailure`'s, or nothing."""
    memory = np.frombuffer(mmap.mmap(memory_fd, 0), dtype=np.float32)
    return lambda item: load_clip(ClipFile(*item[:4]), memory[item[4] : item[5]])


class Load:
    """Some clips on their way into one array, whose rows have so many samples."""

    def __init__(self, files: Sequence[ClipFile | None], samples: int):
        self.files = list(files)
        """By row; None is a row of zeros."""
        self.samples = samples
        self.failures: dict[int, LoadFailure] = {}
        """Rows that were tried and failed. `retry` takes a row out."""
        self.pending = {row for row, file in enumerate(files) if file is not None}
        """Rows that have still to be tried."""
        self.wav: Samples | None = None
        """What was loaded, where it lies in memory of its own."""
        self.place = 0
        """The engine's: where the load is."""
        self.is_cancelled = False

    @property
    def rows(self) -> int:
        return len(self.files)

    def note(self, row: int, failure: LoadFailure | None) -> None:
        self.pending.discard(row)
        if failure:
            self.failures[row] = failure

    def load_pending(self) -> None:
        if self.wav is None:
            self.wav = np.zeros((self.rows, self.samples), dtype=np.float32)
        for row in sorted(self.pending):
            file = self.files[row]
            assert file is not None
            self.note(row, load_clip(file, self.wav[row]))


class LoadingEngine:
    """Loads in this process, when a load is finished: nothing runs ahead. Other engines do the same elsewhere, and ahead.

    Not for several threads. A context manager that closes itself.
    """

    def start(self, files: Sequence[ClipFile | None], samples: int) -> Load:
        """Begin a load, or queue it behind those begun before."""
        return Load(files, samples)

    def finish(self, load: Load) -> None:
        """Wait until every row of a load was tried: those that failed are in `load.failures`."""
        load.load_pending()

    def retry(self, load: Load, row: int, file: ClipFile | None) -> None:
        """Another file for a row that failed; `finish` the load again. None makes it a row of zeros."""
        load.failures.pop(row, None)
        load.files[row] = file
        if file:
            load.pending.add(row)
        if load.wav is not None:
            load.wav[row] = 0.0

    def take(self, load: Load) -> Samples:
        """The samples of a finished load, which then is over. Not to be written to."""
        assert load.wav is not None
        return load.wav

    def cancel(self, load: Load) -> None:
        """End a load that nobody will take."""

    def close(self) -> None:
        """End whatever is under way; no process, thread or memory of the engine is left."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


MOST_DEATHS = 3
"""Of readers, until the clip they were at is blamed: one that was killed may have been in somebody's way."""
MOST_LEASES = 2
"""Batches that may be handed out without a copy: the one in use, and one more while the next is being taken."""


class SlotMemory:
    """Slots of equal size. A batch is written to one, handed out from there, and the slot is used again afterwards.

    Args:
        slots: how many may be written to at a time.
    """

    def __init__(self, slots: int, slot_samples: int):
        self.slot_bytes = -(-slot_samples * 4 // mmap.PAGESIZE) * mmap.PAGESIZE
        self._count = slots + MOST_LEASES
        self._touched = 0
        # The last one given back is the next one taken: memory is not asked for before it is needed.
        self.free = list(reversed(range(self._count)))
        self._leased: set[int] = set()
        self.descriptor = os.memfd_create("myxtts-batches", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.descriptor, self._count * self.slot_bytes)
            self._memory = mmap.mmap(self.descriptor, self._count * self.slot_bytes)
        except BaseException:
            os.close(self.descriptor)
            raise

    def acquire(self) -> int:
        slot = self.free.pop()
        if slot == self._touched:
            try:
                # Without this a page is sought when it is first written, and where there is none the writer dies of SIGBUS.
                os.posix_fallocate(self.descriptor, slot * self.slot_bytes, self.slot_bytes)
            except OSError as error:
                raise MachineError(
                    f"Host memory for batch {slot + 1} of {self._count} that are read ahead, {self.slot_bytes >> 20} MB each, "
                    f"cannot be had: {error.strerror}. Lower --buffer-size or --batch-size."
                ) from error
            self._touched += 1
        return slot

    def view(self, slot: int, rows: int, samples: int) -> Samples:
        return np.ndarray((rows, samples), np.float32, self._memory, slot * self.slot_bytes)

    def release(self, slot: int) -> None:
        # In whichever thread drops the last reference to a lease: both are single operations on built-in types.
        self._leased.discard(slot)
        self.free.append(slot)

    def hand_out(self, slot: int, rows: int, samples: int) -> Samples:
        """The beginning of a slot for somebody else to keep. The slot comes back by itself once nobody refers to it.

        A copy, and the slot is free at once, for a caller who holds on to several: the slots that are written to are
        never taken from the readers.
        """
        array = self.view(slot, rows, samples)
        if len(self._leased) >= MOST_LEASES:
            array = array.copy()
            self.release(slot)
            return array
        self._leased.add(slot)
        # Every view of the array, and every tensor that shares its memory, refers to the array.
        weakref.finalize(array, self.release, slot).atexit = False
        return array

    def close(self) -> None:
        """Give the memory back, as far as nobody refers to it; the rest goes when nobody does."""
        os.close(self.descriptor)
        del self._memory


class ProcessEngine(LoadingEngine):
    """Loads in so many reader processes of its own, of which none has more samples than a slot."""

    def __init__(self, readers: int, depth: int, slot_samples: int):
        self._memory = SlotMemory(depth, slot_samples)
        self._cancelled = 0
        descriptor = self._memory.descriptor
        task = ProcessTask("myxtts.data.loaders:make_loader", {"memory_fd": descriptor})
        try:
            self._pool = TaskPool(task, readers, descriptors=[descriptor], most_deaths=MOST_DEATHS)
        except BaseException:
            self._memory.close()
            raise

    def start(self, files: Sequence[ClipFile | None], samples: int) -> Load:
        load = Load(files, samples)
        while not self._memory.free and self._cancelled:
            self._receive(wait=True)
        load.place = self._memory.acquire()
        self._receive(wait=False)
        self._pool.add([job for row in range(load.rows) for job in self._make_jobs(load, row)])
        return load

    def finish(self, load: Load) -> None:
        while load.pending:
            self._receive(wait=True)

    def retry(self, load: Load, row: int, file: ClipFile | None) -> None:
        super().retry(load, row, file)
        # Before all others: somebody waits for it.
        self._pool.add(self._make_jobs(load, row), comes_first=True)

    def take(self, load: Load) -> Samples:
        return self._memory.hand_out(load.place, load.rows, load.samples)

    def cancel(self, load: Load) -> None:
        load.is_cancelled = True
        self._cancelled += 1
        # What processes were told of already, they will write: until then the slot is not free.
        for job in self._pool.withdraw(lambda job: job.owner[0] is load):
            load.pending.discard(job.owner[1])
        self._free_cancelled(load)

    def close(self) -> None:
        self._pool.close()
        self._memory.close()

    def _make_jobs(self, load: Load, row: int) -> list[TaskJob]:
        """The job of loading a row; none for a row of zeros, which is made here."""
        file = load.files[row]
        if file is None:
            self._memory.view(load.place, load.rows, load.samples)[row] = 0.0
            return []
        first = load.place * self._memory.slot_bytes // 4 + row * load.samples
        return [TaskJob([[*file, first, first + load.samples]], owner=(load, row), cost=file.samples)]

    def _receive(self, wait: bool) -> None:
        for job, results in self._pool.receive(wait=wait):
            load, row = job.owner
            failure = None
            if isinstance(results, Crashed):
                detail = f"{job.deaths} reader processes died while they read it, the last of signal {results.signal}"
                failure = LoadFailure(DropReason.CORRUPT, detail)
            elif results[0]:
                failure = LoadFailure(DropReason(results[0][0]), results[0][1])
            load.note(row, failure)
            self._free_cancelled(load)

    def _free_cancelled(self, load: Load) -> None:
        if load.is_cancelled and not load.pending:
            self._cancelled -= 1
            self._memory.release(load.place)


MOST_AUTO_READERS = 8
"""More cores are left to the rest of the run unless asked for: eight read some thousand clips a second."""

MEMORY_SHARE = 0.25
"""Of the free memory, for batches that are read ahead."""

_HEADER_SLACK_BYTES = 1024


class ReadAhead(NamedTuple):
    """How many micro-batches are read ahead, and the most samples one of them has."""

    depth: int
    slot_samples: int


def choose_readers(data: DataConfig) -> int:
    """How many clips are read at a time; 0 is one, in this process."""
    return min(count_cores(), MOST_AUTO_READERS) if data.num_workers == "auto" else data.num_workers


def choose_read_ahead(
    data: DataConfig,
    plans: Sequence[BucketPlan],
    *,
    accumulation: int,
    clips_per_row: int = 1,
    least_samples: int = 0,
    free_bytes: int | None = None,
) -> ReadAhead:
    """How many micro-batches are read ahead: `--buffer-size`, less where memory is short, never less than one update's.

    Args:
        plans: of all corpora the engine will serve.
        clips_per_row: 2 where another clip is read for each prompt.
        least_samples: of a row.
        free_bytes: memory that can be had; asked of the machine unless given.
    """
    buckets = [bucket for plan in plans for bucket in plan.buckets]
    slot_samples = clips_per_row * max(bucket.rows * max(bucket.samples, least_samples) for bucket in buckets)
    free_bytes = read_free_memory_bytes() if free_bytes is None else free_bytes
    fitting = int(free_bytes * MEMORY_SHARE) // (slot_samples * 4)
    # One more than an update's, so that its successor is begun while it is taken.
    least = accumulation + 1
    return ReadAhead(max(least, min(data.pipeline_buffer_size, fitting)), slot_samples)


class Engine(StrEnum):
    """Who loads the clips of a run."""

    NATIVE = "TensorFlow's input pipeline"
    PROCESSES = "reader processes"
    HERE = "this process"


def choose_engine(data: DataConfig, corpora: Sequence[Corpus]) -> tuple[Engine, str | None]:
    """Who loads these corpora, and why it is not TensorFlow's input pipeline if it is not."""
    others = Engine.PROCESSES if choose_readers(data) else Engine.HERE
    if not data.use_tf_native_loading:
        return others, "use_tf_native_loading is off"
    if data.use_tf_native_loading == "auto" and others is Engine.PROCESSES:
        # Measured by the bench `data`: three times as fast on plain wav, where TensorFlow spends its time on page faults.
        return others, "reader processes are faster"
    objection = explain_no_native_loading(corpora)
    return others if objection else Engine.NATIVE, objection


def open_engine(
    data: DataConfig, corpora: Sequence[Corpus], ahead: ReadAhead, *, batches: ReadAhead | None = None
) -> LoadingEngine:
    """The engine for these corpora, started. The log says which one it is and why.

    Args:
        ahead: all that is loaded ahead.
        batches: of that, the batches of the training; the log says how many, where anything is loaded ahead at all.
    """
    engine, why_not = choose_engine(data, corpora)
    readers = choose_readers(data)
    if engine is Engine.NATIVE:
        _log.info("TF-native loading is in force: tf.data reads %d batches at a time.", max(1, readers))
    else:
        others = f"{readers} reader processes." if readers else "clips are read in this process. Nothing is read ahead."
        _log.info("TF-native loading is not in force (%s): %s", why_not, others)
    if engine is Engine.HERE:
        return LoadingEngine()
    if batches is not None:
        depth, slot_mb = batches.depth, batches.slot_samples * 4 / 1e6
        if depth < data.pipeline_buffer_size:
            _log.warning(
                "Reading ahead %d batches instead of %d: one takes up to %.0f MB, and they get a quarter of the free memory.",
                *(depth, data.pipeline_buffer_size, slot_mb),
            )
        _log.info("Reading ahead up to %d batches (%.0f MB of host memory).", depth, depth * slot_mb)
        _log.info("Buffer Size: %d", depth)
    if engine is Engine.PROCESSES:
        return ProcessEngine(readers, ahead.depth, ahead.slot_samples)
    # Not imported above: the other engines do without TensorFlow.
    from myxtts.data.loading_tf import NativeEngine

    return NativeEngine(
        max(1, readers), ahead.depth, parallel_batch=data.enable_parallel_batch, map_fusion=data.enable_map_fusion
    )


def explain_no_native_loading(corpora: Sequence[Corpus]) -> str | None:
    """Why TensorFlow's own operations cannot read these corpora, or None when they can.

    A file's size must fit plain wav. One that is another one nevertheless is read all the same, only not by TensorFlow.
    """
    wanted = f"16-bit PCM mono wav at {SAMPLE_RATE_HZ} Hz"
    for corpus in corpora:
        extra = corpus.size_bytes - corpus.samples * PLAIN_SAMPLE_BYTES
        others = np.flatnonzero((extra < 0) | (extra > _HEADER_SLACK_BYTES))
        if len(others):
            return f"{len(others)} of {len(corpus)} clips are not {wanted}, such as {corpus.audio[int(others[0])]}"
    return None

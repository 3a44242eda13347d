"""Copies onto the model device, and how large they are."""

from pathlib import Path

import numpy as np

from myxtts.data.replacements import Failure
from myxtts.pipeline.batch_facts import BatchFacts, dump_failures
from myxtts.pipeline.batch_memory import BatchMemory, dump_memory
from myxtts.pipeline.batch_size import measure_batch_bytes
from myxtts.pipeline.batch_spans import Span, dump_spans
from myxtts.pipeline.order import Kind
from myxtts.pipeline.ring import Ring
from myxtts.pipeline.transfer import place_batch

FACTS = BatchFacts(7, Kind.VALIDATION, 5, 0, 1, 2, 3, 4, 5000, 6000)


def test_a_slot_that_is_overwritten_changes_no_tensor() -> None:
    arrays = {
        "mel_BFM": np.arange(2 * 3 * 80, dtype=np.float32).reshape(2, 3, 80),
        "codes_BM": np.arange(10, dtype=np.int32).reshape(2, 5),
        "facts_N": FACTS.dump(),
        "replaced_R3": dump_failures([Failure(1, 2, 3)]),
        "clips_B": np.array([4, -1], np.int32),
        "moments_22": dump_spans(Span(1.0, 1.5), Span(1.5, 3.0)),
        "memory_3": dump_memory(BatchMemory(42, 1 << 30, None)),
    }
    reading = Ring.create(1, 1 << 16)
    writing = Ring.attach(reading.fileno(), 1, reading.slot_bytes)
    views = reading.read(0, writing.pack(0, arrays))
    assert all(view.ctypes.data % 64 == 0 for view in views.values()), "aligned: the case in which memory may be shared"
    batch = place_batch(views, "/CPU:0")
    writing.pack(0, {name: np.zeros_like(array) for name, array in arrays.items()})
    assert not views["mel_BFM"].any()
    assert set(batch.tensors) == {"mel_BFM", "codes_BM"}
    for name, tensor in batch.tensors.items():
        assert tensor.numpy().tolist() == arrays[name].tolist()
    assert batch.clips_B.tolist() == [4, -1]
    assert batch.facts == FACTS
    assert batch.replaced == (Failure(1, 2, 3),)
    assert batch.spans[:2] == (Span(1.0, 1.5), Span(1.5, 3.0))
    assert batch.spans.transfer.seconds > 0
    assert batch.memory == (42, 1 << 30, None)
    del views
    reading.close()


def test_the_size_of_a_batch_is_known_beforehand(tmp_path: Path) -> None:
    from myxtts.pipeline.batch_factory import BatchFactory
    from tests.pipeline.small_runs import make_production, make_run_folder

    data, production = make_production(make_run_folder(tmp_path, clips=8), data={"num_workers": 0})
    factory = BatchFactory(data, production, "/CPU:0")
    try:
        batch = factory.fetch(factory.make(0))
    finally:
        factory.close()
    bucket = data.sampler.plan.buckets[BatchFacts.parse(batch["facts_N"]).bucket_number]
    really = sum(array.nbytes for array in batch.values())
    assert really <= measure_batch_bytes(production.preparation, bucket) <= really * 1.1

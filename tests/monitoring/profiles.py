"""Profiles made of numbers: a pipeline of given stage times, without a clock."""

from dataclasses import dataclass

from myxtts.monitoring.profile_facts import BatchTimes, Profile, ProfiledRun
from myxtts.pipeline.batch import BatchSpans, Span


@dataclass(frozen=True)
class Stages:
    """Milliseconds per batch."""

    read: float = 1.0
    prepare: float = 10.0
    transfer: float = 1.0
    train: float = 20.0


def make_run(mode="dual"):
    return ProfiledRun(mode, True, "/CPU:1", "/CPU:2", 4, 1, "tiny gpt, 7.8 M parameters, float32", "55 clips")


def simulate(stages, *, slots=3, in_series=False):
    """What happens to these batches: a data thread, a transfer thread and a training thread with slots between them."""
    done = []
    data_free = transfer_free = train_free = 0.0
    for number, stage in enumerate(stages):
        if in_series:
            data_free = transfer_free = train_free
        elif number >= slots:
            data_free = max(data_free, done[number - slots].spans.transfer.ended_s)
        read = Span(data_free, data_free + stage.read / 1000)
        prepare = Span(read.ended_s, read.ended_s + stage.prepare / 1000)
        began = max(prepare.ended_s, transfer_free)
        transfer = Span(began, began + stage.transfer / 1000)
        data_free, transfer_free = prepare.ended_s, transfer.ended_s
        wait = Span(train_free, max(train_free, transfer.ended_s))
        train = Span(wait.ended_s, wait.ended_s + stage.train / 1000)
        train_free = train.ended_s
        done.append(BatchTimes(number, BatchSpans(read, prepare, transfer), wait, train))
    return done


def make_profile(stages, *, mode="dual", **changes):
    """A profile of 40 batches, of which the first ten filled the pipeline."""
    each = [stages] * 40 if isinstance(stages, Stages) else stages
    in_series = mode == "single"
    real = simulate(each, in_series=in_series)[10:]
    pipeline = simulate([Stages(s.read, s.prepare, s.transfer, 0.0) for s in each], in_series=in_series)[10:]
    facts = {
        "run": make_run(mode),
        "synced": tuple(real),
        "free": tuple(real),
        "step_s": (real[-1].train.ended_s - real[0].wait.began_s) / len(real),
        "pipeline": tuple(pipeline),
        "cached_s": tuple(batch.train.seconds for batch in real),
        "left_out": 10,
        **changes,
    }
    return Profile(**facts)

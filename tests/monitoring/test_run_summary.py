from dataclasses import replace

import pytest

from myxtts.monitoring.clock import Cause
from myxtts.monitoring.memory import LEAK_EVENT, Leak, Memory, Phase
from myxtts.monitoring.metrics import EventRow, MemoryUse, ValidationRow
from myxtts.monitoring.summary import RUNNING, format_performance, format_summary, summarise_run
from tests.monitoring.runs import GIB, make_flow, make_machine_row, make_rows, make_run_row, make_train_row


def test_figures_of_a_known_run():
    summary = summarise_run(make_rows(400))
    # Start-up 20, tracing 10, steps 5 + 39 * 9, stall and other 39 * 0.5 each, checkpoint and validation 5 each.
    assert summary.elapsed_s == pytest.approx(35 + 39 * 10 + 10)
    assert summary.goodput == pytest.approx(356 / 435)
    assert summary.data_stall == pytest.approx(19.5 / 435)
    assert summary.padding_waste == pytest.approx(0.2)
    assert (summary.step, summary.status, summary.sessions, summary.retraces) == (400, "finished", 1, 0)
    assert summary.best_validation == (400, pytest.approx(3.1134, abs=1e-3))
    assert summary.times.steps == 400
    assert summary.clips_per_s == pytest.approx(16.0)


def test_the_end_of_a_session_that_no_row_has_counts_and_so_does_what_a_killed_one_lost():
    rows = [make_run_row(), make_train_row(10)]
    ended = summarise_run(rows, tail={Cause.CHECKPOINT: 5.0}, status="stopped")
    assert (ended.elapsed_s, ended.spent[Cause.CHECKPOINT], ended.status) == (15.0, 5.0, "stopped")
    resumed = summarise_run([*rows, make_run_row(10, lost_s=30.0), make_train_row(20)])
    assert resumed.spent[Cause.RECOVERY] == 30.0
    assert resumed.goodput == pytest.approx(18 / 50)
    assert (resumed.sessions, resumed.status) == (2, RUNNING)
    assert summarise_run([*make_rows(), make_run_row(400)]).status == RUNNING, "it began after a summary"


def test_a_run_without_steps_is_unknown_and_not_zero():
    text = format_summary(summarise_run([make_run_row()]))
    for title in ("Goodput      ", "Step time    ", "Padding      ", "\nVerdict      "):
        assert f"{title}unknown" in text


def test_a_validation_that_is_not_finite_is_never_the_best():
    rows = [
        make_run_row(),
        *(ValidationRow(time_s=0.0, step=n, loss=loss, is_best=True) for n, loss in ((1, 4.0), (2, float("nan")))),
        ValidationRow(time_s=0.0, step=3, loss=2.0),
    ]
    assert summarise_run(rows).best_validation == (1, 4.0), "nor one that was not marked: its loss was of another kind"


def test_the_text_fits_80_columns_and_ends_with_the_verdict():
    lines = format_summary(summarise_run(make_rows())).splitlines()
    assert max(len(line) for line in lines) <= 80
    text = " ".join(line.strip() for line in lines)
    assert "Goodput      81.8%" in text
    assert "on the model device: ready 9" in text
    assert "train waits" in text
    assert text.endswith("Try first: --mixed-precision")
    assert "400 steps in 7 min 15 s" in text


def test_the_machine_of_the_run_decides_about_advice():
    first, *others = make_rows()
    # Half precision is for cards.
    assert summarise_run([replace(first, around={"cards": [], "processors": 16}), *others]).limit.flag == "--enable-xla"


def test_the_pace_of_a_session_with_its_finding():
    slow = [
        make_train_row(step, step_times_s=(0.5, 1.5) * 5, flow=make_flow(train_waits=0.4, transfer_waits=0.9))
        for step in (10, 20)
    ]
    summary = summarise_run([make_run_row(), *slow])
    rates = summary.clips_per_s, summary.audio_seconds_per_s
    text = " ".join(format_performance(summary.times, *rates, summary.variation).split())
    assert "mean 1.00 s +- 500 ms (500 ms to 1.50 s), variation 50.0%" in text
    assert "16 clips/s" in text
    assert "High timing variation" in text
    assert "'prepare'" in text
    assert "Finding" not in format_performance(None, None, None, None)


def test_what_was_predicted_stands_beside_what_the_last_session_reached():
    rows = [make_run_row(), make_train_row(10), make_run_row(10, predicted_step_s=0.75), make_train_row(20)]
    assert "Auto mode    predicted 750 ms a step, reached 920 ms (+23%)" in format_summary(summarise_run(rows))
    # A session whose mode was given had no prediction, whatever an earlier one had.
    given = summarise_run([*rows, make_run_row(20), make_train_row(30)])
    assert given.expected is None
    assert "Auto mode" not in format_summary(given)
    begun = format_summary(summarise_run(rows[:-1]))
    assert "predicted 750 ms a step; reached unknown" in begun


def test_memory_cards_and_host_are_in_the_summary_and_what_grows_is_a_finding():
    leak = Leak(Memory.TRAINER, Phase.VALIDATION, "gpt", 300, 120.0, 3 * GIB)
    uses = (
        MemoryUse("model /GPU:0", GIB, 16 * GIB, GIB, 17 * GIB, GIB // 2),
        MemoryUse("data /GPU:0", None, 8 * GIB),
        MemoryUse("host, trainer", 2 * GIB, None),
    )
    told = [EventRow(time_s=0.0, step=step, name=LEAK_EVENT, text=str(leak)) for step in (300, 380)]
    rows = [make_run_row(), *told[:1], make_train_row(390, memory=uses), *told[1:], make_machine_row(390)]
    lines = format_summary(summarise_run(rows)).splitlines()
    assert max(len(line) for line in lines) <= 80
    text = " ".join(" ".join(lines).split())
    assert "model /GPU:0 1.0 GB of 16.0 GB (TensorFlow 1.0 GB, process 17.0 GB, context 512.0 MB)" in text
    assert "data /GPU:0 unknown of 8.0 GB; host, trainer 2.0 GB" in text
    assert "GPU 1 the driver says: busy 90.0%, 310 W of 350 W" in text
    assert "processes of the run hold 3.0 GB, free 8.0 GB" in text
    growth = "Memory keeps growing: host memory of the trainer, 120 MB per 100 steps, in the validation"
    assert text.count(f"Finding {growth}") == 1


def test_throughput_and_the_time_of_a_batch_leave_out_what_was_traced():
    unknown = {"clips_per_s": None, "audio_seconds_per_s": None}
    traced = make_train_row(10, spent={Cause.TRACE: 90.0, Cause.DATA_STALL: 5.0}, **unknown)
    slow = make_train_row(20, spent={Cause.STEP: 30.0}, clips_per_s=4.0, audio_seconds_per_s=8.0)
    summary = summarise_run([make_run_row(), traced, slow, make_train_row(30, audio_seconds_per_s=16.0)])
    assert (summary.clips_per_s, summary.audio_seconds_per_s) == (7.0, 10.0)

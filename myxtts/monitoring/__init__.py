"""7. Facts to findings: where the time and the memory of a run go, what limits it, and the one change worth trying.

`step_clock` and `time_ledger` measure inside the loop, `flow` reads who waits for whom, `interval` makes one row of a
stretch of steps, `metrics_log` writes the rows (the source of truth of a run) and reads them back. Everything shown is made
of rows: `live_view` while the run goes on, `run_summary` and the pages of `reports` afterwards. What is not known is None and shown as
`unknown`, never as 0. Only `tensorboard_writer` imports TensorFlow. `machine_sampler` watches cards and host beside a run.

A profile (`profile_facts`, `profile_verdict`, and its views) says where the time of a step goes; the `..._checks` say what is wrong
with a set-up, and `diagnosis` tells it.
"""

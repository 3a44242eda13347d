"""8. The loop: a run's folder and its rules of resuming, the compiled step, the trainers; and what measures runs.

`trainer` opens a run, `run_stages` says what its stages are made of and `stage_run` runs one: there `loop` takes the batches,
`updates` and `step` train on them, `validation` rates the model and `keeper` keeps it. `mode` chooses
how to run by measuring, and the room `profiling` measures. `mode`, `run_folder` and `resume_rules` answer without TensorFlow.
"""

"""8. The loop: a run's folder and its rules of resuming, the compiled step, the trainers; and what measures runs.

`trainer` tells a run from its folder to its speech: there `loop` takes the batches, `step` trains on them, `validation` rates the
`model`, which a `CheckpointSaver` keeps, and `run_log` tells of it. `mode` chooses how to run by measuring, and the room
`profiling` measures. `mode`, `run_folder`, `resume_rules`, `starting_point` and `stopping` answer without TensorFlow.
"""

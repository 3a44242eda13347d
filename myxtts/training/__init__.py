"""8. The run: its folder and its rules of resuming, its loop, the compiled step.

`trainer` tells a run from its devices to its speech: there `loop` takes the batches, `step` trains on them, a `CheckpointSaver` keeps
the `model`, and `run_log` tells of it. `mode` chooses how to run. `mode`, `run_folder`, `resume_rules`, `starting_point` and
`stopping` answer without TensorFlow.
"""

"""8. The run: its folder and its rules of resuming, its loop, the compiled step.

`trainer` tells a run from its devices to its speech: there `loop` takes the batches, `step` trains on them at the rate that `schedule`
decides, a `saver` keeps the `model`, `run_log` tells of it, and all who train the same run are `peers`. `mode` chooses how to run. `mode`, `run_folder`, `resume_rules`, `starting_point` and
`stopping` answer without TensorFlow.
"""

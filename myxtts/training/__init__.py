"""8. The loop: a run's folder and its rules of resuming, the compiled step, the trainers.

`run_folder` and `resume_rules` answer without TensorFlow.
"""

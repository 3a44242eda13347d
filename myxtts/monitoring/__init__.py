"""7. Facts to findings: where the time and the memory of a run go, what limits it, and the one change worth trying.

`clock` and `memory` measure inside the loop, `sampler` watches cards and host beside it, `metrics` writes the rows of a run (its
source of truth) and reads them back. Everything shown is made of rows: `live_view` while the run goes on, `summary` and the pages
of `reports` afterwards. `findings` says what limits a run, `profile_facts` where the time of a step goes, `machine_facts` what is
installed. What is not known is None and shown as `unknown`, never as 0. Only `tensorboard` imports TensorFlow.
"""

"""The self-check: what has to be seen on real cards, check by check, each in a process of its own.

checks.py        the list, and what each needs
runner.py        runs them one after another, with time limits; judges losses against each other
report.py        the result as text, Markdown and JSON
situation.py     cards or rehearsal, and the plan of each mode for them
small_run.py     what checks that train run
*_work.py        what a check does, in its process (the only part that imports TensorFlow)
"""

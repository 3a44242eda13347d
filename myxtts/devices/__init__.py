"""2. Which device does which job: what the machine has, the plan for a run, and putting the plan into force.

Only `devices.runtime` imports TensorFlow; everything else here answers without it.
"""

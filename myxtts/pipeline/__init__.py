"""6. From a host batch to a batch on the model device: stages that work, and slots that hand on and measure who waits.

Stages and hand-offs know no device and no TensorFlow; what a stage does is a function it is given.
"""

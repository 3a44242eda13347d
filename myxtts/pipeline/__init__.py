"""6. From a host batch to a batch on the model device: workers, and slots that hand on and measure who waits.

Workers and hand-offs know no device and no TensorFlow; what a worker does is a function it is given.
"""

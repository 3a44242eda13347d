"""6. From a host batch to a batch on the model device: threads, and slots that hand on and measure who waits.

Threads and hand-offs know no device and no TensorFlow; what a thread does is a function it is given.
"""

"""MyXTTS: train and run XTTS in TensorFlow, with one device that prepares and one that trains.

Importing this package imports no TensorFlow and touches no device.
"""

__version__ = "0.1.0"

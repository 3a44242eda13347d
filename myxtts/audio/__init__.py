"""3. Speech in: clips from files, resampling, mels, conditioning slices, augmentation.

Modules whose names end in `_tf`, and `mels` and `tiles`, import TensorFlow; all others do not, so that reader
processes and scans stay light.
"""

"""3. Speech in: clips from files, resampling, mels, conditioning slices, augmentation.

Only `griffin_lim`, `mels` and `on_device` import TensorFlow, so that reader processes and scans stay light.
"""

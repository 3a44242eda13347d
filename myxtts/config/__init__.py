"""1. What was asked: settings, their ranges and rules, presets, YAML files and flags. Never imports TensorFlow."""

from myxtts.config.config import DataConfig, ModelConfig, TrainingConfig, XTTSConfig
from myxtts.config.data import LANGUAGES
from myxtts.config.sources import resolve_config

__all__ = [
    "LANGUAGES",
    "DataConfig",
    "ModelConfig",
    "TrainingConfig",
    "XTTSConfig",
    "resolve_config",
]

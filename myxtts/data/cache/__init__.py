"""Features that depend on a clip alone (codes, speaker embeddings), prepared once and kept: in memory or on disk.

`decide_policy` says where, `FeatureCache` keeps them by clip id, and a `GenerationKey` says what they depend on besides
the clip. What is drawn at random, like conditioning slices, is never kept. Nothing here imports TensorFlow.
"""

from myxtts.data.cache.clip_ids import ClipIds, identify_files
from myxtts.data.cache.errors import CacheFolderError, CacheKeyError
from myxtts.data.cache.feature_cache import CacheStats, FeatureCache
from myxtts.data.cache.free_space import read_free_disk_bytes
from myxtts.data.cache.generation import Generation, list_generations
from myxtts.data.cache.key import GenerationKey, digest_arrays
from myxtts.data.cache.policy import Decision, Measured, Policy, decide_policy

__all__ = [
    "CacheFolderError",
    "CacheKeyError",
    "CacheStats",
    "ClipIds",
    "Decision",
    "FeatureCache",
    "Generation",
    "GenerationKey",
    "Measured",
    "Policy",
    "decide_policy",
    "digest_arrays",
    "identify_files",
    "list_generations",
    "read_free_disk_bytes",
]

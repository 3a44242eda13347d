"""The two modules users import by name: `gpu_memory` and `commons`. Nothing else belongs here."""

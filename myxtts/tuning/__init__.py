"""Finding good settings, and what limits a run."""

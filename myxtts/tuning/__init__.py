"""Finding good settings, what limits a run, and codes made ahead of one."""

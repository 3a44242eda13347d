"""Choosing the mode of a run by measuring it: `--mode auto`."""

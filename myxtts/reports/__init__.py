"""Pages about runs and corpora: each one file without a script, to be opened anywhere and sent to anybody."""

"""The studio: one local page from recordings to a voice. It starts the commands of the shell, and keeps everything in one folder."""

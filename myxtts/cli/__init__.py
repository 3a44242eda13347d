"""The `myxtts` command. Parsing, printing and exit codes; the work is done by the rooms below."""

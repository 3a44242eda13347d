"""Finding settings that suit a machine: `myxtts configure`."""

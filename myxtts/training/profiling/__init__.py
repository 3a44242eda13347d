"""Running a training only to see where its time goes: `myxtts profile`."""

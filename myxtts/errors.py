"""The two families of errors, and those that more than one room raises; a room's own are in its `errors.py`.

Two families, so that a caller (and the command line's exit code) can tell whose turn it is:
`UserError` is for input that somebody can correct, `MachineError` for a machine that cannot do what was asked.
Messages say what must be, what is, and what to do.
"""


class MyXTTSError(Exception):
    """Base of all errors raised on purpose. The command line prints the message, without a traceback."""

    exit_code = 1


class UserError(MyXTTSError, ValueError):
    """Something the user gave cannot be used as it is: a flag, a YAML value, a file."""

    exit_code = 2


class MachineError(MyXTTSError, RuntimeError):
    """The machine, its drivers or TensorFlow cannot do what was asked."""


class ConfigError(UserError):
    """One or more settings cannot be used.

    Args:
        problems: pairs of dotted key (may be empty) and what is wrong with it, in the order found.
    """

    def __init__(self, problems: list[tuple[str, str]]):
        self.problems = list(problems)
        super().__init__("\n".join(f"{key} {text}" if key else text for key, text in self.problems))


class CommandLineError(UserError):
    """The words on the command line do not fit together."""


class DevicePlanError(UserError):
    """The devices asked for cannot be had on this machine."""


class DevicesInUseError(MachineError):
    """TensorFlow was initialised before a device plan could be applied."""


class DeviceMismatchError(MachineError):
    """TensorFlow's view of the devices differs from what the plan was made for."""


class NvmlError(MachineError):
    """The NVIDIA driver's library is there but does not answer as it should."""


class WorkFailedError(MachineError):
    """A part of the pipeline's work failed. Names it; its cause is the original error."""


class WorkStalledError(MachineError):
    """Work makes no progress or does not stop. Carries its stack."""


class ProducerFailedError(MachineError):
    """The producer process cannot go on: it died too often, or failed in a way a restart cannot mend."""

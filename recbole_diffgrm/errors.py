"""Errors that are the user's to mend: shown as one line, never as a traceback."""


class UserError(ValueError):
    """Bad input. The message says what is wrong and what to do; the command line exits with code 2."""


class Interrupted(Exception):
    """SIGINT or SIGTERM arrived. What was done is saved; the command line exits with 128 + the signal's number."""

    def __init__(self, signal_number: int, run_dir):
        super().__init__(f"stopped by signal {signal_number}; saved in {run_dir}, continue with --resume")
        self.signal_number = signal_number

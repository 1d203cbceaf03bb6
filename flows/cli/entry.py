"""Where the command `xc` begins: what Ctrl-C does until a command's own code runs, and while Python imports."""

import os
import signal
from types import FrameType


def on_ctrl_c(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, or end the process where it imports.

    Amid an import an exception is lost, or aborts the library that is being loaded.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, b"error: interrupted\n")
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


def main() -> None:
    """Run `xc`."""
    # in the background, too: a shell without job control starts a command there with SIGINT ignored
    signal.signal(signal.SIGINT, on_ctrl_c)
    from flows.cli.app import main as run

    run()

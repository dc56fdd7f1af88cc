"""The `servesim` command, and `python -m servesim`."""

import os
import signal
import sys
import threading
from importlib.machinery import ExtensionFileLoader
from types import FrameType

AGAIN_S = 0.02  # an interrupt that comes while a C extension is being initialized comes again after this time


def main() -> None:
    """Run the command line; an interrupt that comes while it is still being imported is one line as well."""
    try:
        signal.signal(signal.SIGTERM, interrupt)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, interrupt)
        from servesim.cli.app import main as command
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: nothing was written\n")
        sys.stderr.flush()
        os._exit(130)  # see servesim.cli.app.main
    command()


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt: `timeout` and batch systems end a command by SIGTERM, and it leaves as little behind.

    The initialization of a C extension may swallow an exception (Cython's clears any that meets it), and the command
    would run on: there the signal is sent again a little later, until the import is over.
    """
    if _initializes_an_extension(frame):
        again = threading.Timer(AGAIN_S, signal.raise_signal, [number])
        again.daemon = True
        again.start()
    else:
        raise KeyboardInterrupt


def _initializes_an_extension(frame: FrameType | None) -> bool:
    while frame is not None:
        if isinstance(frame.f_locals.get("self"), ExtensionFileLoader):
            return True
        frame = frame.f_back
    return False


if __name__ == "__main__":
    main()

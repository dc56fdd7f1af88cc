"""The `servesim` command, and `python -m servesim`."""

import gc
import os
import signal
import sys
import threading
from importlib.machinery import ExtensionFileLoader
from types import FrameType

COLLECT_AFTER = 100_000
"""Objects allocated, net, between collections of young garbage: what a command imports and builds mostly stays, and
Python's 700 would have it traversed hundreds of times."""
AGAIN_S = 0.02  # delay before resending an interrupt that arrived while a C extension was being initialized


def main() -> None:
    """Run the command line. An interrupt during its import also prints a single line."""
    gc.set_threshold(COLLECT_AFTER)
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
    """Raise KeyboardInterrupt: `timeout` and batch systems end a command with SIGTERM, and this must clean up just as
    an interrupt does.

    The initialization of a C extension may swallow an exception (Cython's clears any that occurs in it), and the
    command would keep running. In that case the signal is sent again a little later, until the import is over.
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

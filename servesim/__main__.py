"""The `servesim` command, and `python -m servesim`."""

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command line; an interrupt that comes while it is still being imported is one line as well."""
    try:
        signal.signal(signal.SIGTERM, _interrupt)
        from servesim.cli.app import main as command
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: nothing was written\n")
        sys.stderr.flush()
        os._exit(130)  # see servesim.cli.app.main
    command()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """As Ctrl-C: `timeout` and batch systems end a command this way, and it leaves as little behind."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()

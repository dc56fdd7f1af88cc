"""The `servesim` command, and `python -m servesim`."""

import os
import sys


def main() -> None:
    """Run the command line; an interrupt that comes while it is still being imported is one line as well."""
    try:
        from servesim.cli import main as command
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: nothing was written\n")
        sys.stderr.flush()
        os._exit(130)  # see servesim.cli.main
    command()


if __name__ == "__main__":
    main()

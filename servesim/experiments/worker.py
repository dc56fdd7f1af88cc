"""Worker process that reads cells as lines of JSON and writes the outcome of each as another such line.

It ends immediately, even in the middle of a cell, when the process that feeds it is gone.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from pathlib import Path

from servesim.experiments.store import Cell, compute


def main() -> None:
    """Compute cells from standard input until it ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # keep a policy's prints out of answers
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    while True:
        address, settings, folder = json.loads(lines.get())
        answers.write(json.dumps({"error": compute(Cell(address, settings), Path(folder))}) + "\n")


def _read(lines: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()

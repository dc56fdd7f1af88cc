"""HTML page of any result directory."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from servesim.errors import UserError
from servesim.plugins.trust import takes_trust
from servesim.reports.page import Page, experiment_pages
from servesim.reports.run_page import run_page
from servesim.run.result import Result


@takes_trust
def report(result: Result | str | Path, window_s: tuple[float, float] | None = None) -> str:
    """Return the HTML page of a run, or of a directory that run, compare, sweep or capacity wrote. For a run,
    `window_s` is the number of seconds that the request chart shows. `trust=True` allows running code that is named
    only by the directory's files."""
    if not isinstance(result, Result):
        folder = Path(result)
        for name, module in experiment_pages().items():
            if (folder / name).is_file():
                if window_s is not None:
                    raise UserError(
                        f"{folder}: contains an experiment, whose page has no chart of requests, so --window does "
                        "not apply"
                    )
                page: Page = import_module(module).page(folder)
                return page.html()
        result = Result.load(folder)
    return run_page(result, window_s).html()

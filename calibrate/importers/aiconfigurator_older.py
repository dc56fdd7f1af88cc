"""Kernel timings of an older engine version, from older wheels of `aiconfigurator`, as rows that replace newer ones.

Wheels up to 0.6 hold their measurements as text at
`aiconfigurator/systems/data/<system>/<framework>/<version>/<table>.txt`, timed in the same way, with the columns
of the present package. Their 16-bit rows are named float16 instead of bfloat16, which runs at the same rates.
Imported are GEMMs in 16 bits and FP8, and the framework's all-reduce. The other tables are left out. Experts take as
long as in newer rows where one GPU holds all of them (1.0.0rc3, fp8 blocks, 128 experts: 0.97 to 1.08 times), and over
several GPUs one token takes 1.2 to 1.4 times as long, for reasons not known. Attention covers only heads of 128, whose
medians are 0.98 to 1.2 times those of newer rows.
"""

from __future__ import annotations

import io
import zipfile
from functools import partial
from pathlib import Path, PurePosixPath

from servesim.calibrate.importers.aiconfigurator import FILES, write_file
from servesim.calibrate.importers.aiconfigurator_files import Files
from servesim.errors import UserError, suggest

KEPT = ("gemm", "comm")
"""Files that are written."""


def import_older(wheel: str | Path, system: str, framework: str, version: str, out_dir: str | Path) -> dict[str, int]:
    """Write the rows of one version of `framework` on `system` and return the number of rows by file name. Raise
    UserError if the wheel lacks them."""
    path = Path(wheel)
    if not zipfile.is_zipfile(path):
        raise UserError(f"{wheel} is not a wheel of aiconfigurator")
    archive = zipfile.ZipFile(path)
    files = Files()
    files.project, files.version = "aiconfigurator", (*path.name.split("-"), "unknown")[1]
    names = [PurePosixPath(name) for name in archive.namelist() if name.endswith("_perf.txt")]
    known = sorted({"/".join(name.parts[3:6]) for name in names if len(name.parts) == 7})
    asked = f"{system}/{framework}/{version}"
    if asked not in known:
        raise UserError(f"{wheel}: no tables of {asked}{suggest(asked, known)}")
    tables = {name.stem: name for name in names if "/".join(name.parts[3:6]) == asked}
    written = {}
    for name, parts in FILES:
        found = [
            (convert, tables[key], partial(_as_parquet, archive, tables[key]))
            for key, convert in parts
            if key in tables
        ]
        rows = write_file(files, found, Path(out_dir) / f"{name}.parquet") if name in KEPT else 0
        if rows:
            written[f"{name}.parquet"] = rows
    return written


def _as_parquet(archive: zipfile.ZipFile, table: PurePosixPath) -> bytes:
    """Return a table in the present form, with the present names of its formats."""
    import pandas as pd

    buffer = io.BytesIO()
    pd.read_csv(io.BytesIO(archive.read(str(table)))).replace({"float16": "bfloat16"}).to_parquet(buffer)
    return buffer.getvalue()

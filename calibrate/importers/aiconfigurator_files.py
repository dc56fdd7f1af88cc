"""Files of the `aiconfigurator-core` package, installed or as a wheel, and the newest table of each system."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.version import Version

from servesim.errors import UserError, suggest

PACKAGES = ("aiconfigurator_core", "aisimulate_core")
"""Names of the package: the current one, and one to which its distribution may move; the layout is the same."""


DTYPES = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "int4_wo": "int4",
    "int8_wo": "int8_wo",
    "sq": "int8",
    "nvfp4": "nvfp4",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4_mxfp8",
}
BLOCK = "fp8_block"
SPARSE = ("dsa_context_module_perf", "dsa_generation_module_perf")
"""Tables of sparse attention: prefill and decode."""


class Files(dict[PurePosixPath, Callable[[], bytes]]):
    """Readers of the package's files by path inside the package, and the package's name and version."""

    project: str = "aiconfigurator-core"
    version: str = "unknown"


def package_files(root: Path) -> Files:
    """Return the files of the package or wheel at `root`; raise UserError if it is neither."""
    files = Files()
    if root.is_file() and zipfile.is_zipfile(root):
        archive = zipfile.ZipFile(root)
        for name in archive.namelist():
            package, _, inner = name.partition("/")
            if package in PACKAGES and inner:
                files[PurePosixPath(inner)] = lambda name=name: archive.read(name)  # type: ignore[misc]
        parts = root.name.split("-")
        files.version = parts[1] if len(parts) > 1 else "unknown"
    elif root.is_dir():
        base = next((root / p for p in PACKAGES if (root / p).is_dir()), root)
        for path in sorted(base.glob("systems/data/**/*.parquet")):
            files[PurePosixPath(path.relative_to(base))] = path.read_bytes
        for info in sorted(base.parent.glob("ai*_core-*.dist-info")):
            files.version = info.name.removesuffix(".dist-info").split("-")[1]
    if not files:
        raise UserError(f"{root} is neither the aiconfigurator-core package nor its wheel")
    return files


Found = dict[str, tuple[PurePosixPath, Callable[[], bytes]]]


def newest(
    files: Files,
    system: str,
    frameworks: tuple[str, ...] | None,
    stem: str = "",
    dtypes: tuple[str, ...] = (),
) -> Found:
    """Return, for each table, the newest version measured with one of `frameworks`. With `dtypes`, return for each
    dtype the newest version, from any framework, of the table `stem` that contains the dtype."""
    systems = {p.parts[2] for p in files if p.parts[:2] == ("systems", "data")}
    if system not in systems:
        raise UserError(f"unknown system {system!r}{suggest(system, systems)}")
    best: dict[str, tuple[Version, PurePosixPath]] = {}
    for path in sorted(files):
        if path.suffix != ".parquet" or path.parts[:3] != ("systems", "data", system) or len(path.parts) != 7:
            continue
        _, _, _, _, source, version, _ = path.parts
        if (frameworks and source not in frameworks) or (stem and path.stem != stem):
            continue
        number = Version(version)
        held = _dtypes_of(files[path]()) if dtypes else set()
        for key in (d for d in dtypes if d in held) if dtypes else (path.stem,):
            if key not in best or number > best[key][0]:
                best[key] = (number, path)
    return {key: (path, files[path]) for key, (_, path) in best.items()}


def versions_of(files: Files, system: str, framework: str, stem: str) -> list[PurePosixPath]:
    """Return the paths of a table in all versions of a framework, newest first."""
    paths = [
        p
        for p in files
        if p.parts[:3] == ("systems", "data", system) and p.name == f"{stem}.parquet" and len(p.parts) == 7
    ]
    return sorted((p for p in paths if p.parts[4] == framework), key=lambda p: Version(p.parts[5]), reverse=True)


def _dtypes_of(data: bytes) -> set[str]:
    import pyarrow.parquet as pq

    column = pq.read_table(io.BytesIO(data), columns=["gemm_dtype"])["gemm_dtype"]
    return set(column.unique().to_pylist())


def read_parquet(data: bytes) -> Any:
    """Return the contents of a Parquet file as a pandas DataFrame."""
    import pyarrow.parquet as pq

    return pq.read_table(io.BytesIO(data)).to_pandas()

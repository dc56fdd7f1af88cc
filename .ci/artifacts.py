"""Checks of a release before it is published, with nothing but the standard library.

python .ci/artifacts.py tag v0.1.0       # the tag, the version and a dated heading of CHANGELOG.md agree
python .ci/artifacts.py files FOLDER     # each wheel is within its size, its extensions are stripped
"""

from __future__ import annotations

import re
import struct
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_MB = {"pure": 20, "compiled": 30}
UNWANTED = (".debug_info", ".symtab")


def problems_of_tag(tag: str, root: Path = ROOT) -> list[str]:
    """Return what disagrees with the tag."""
    version = tag.removeprefix("v")
    declared = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    cited = re.search(r"^version: (.*)$", (root / "CITATION.cff").read_text(encoding="utf-8"), flags=re.M)
    dated = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$"
    found = [] if tag.startswith("v") else [f"{tag} does not begin with v"]
    found += [f"pyproject.toml has version {declared}"] if declared != version else []
    found += ["CITATION.cff has another version"] if cited is None or cited[1] != version else []
    if not re.search(dated, (root / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.M):
        found.append(f"CHANGELOG.md has no heading [{version}] with a date")
    return found


def problems_of_files(folder: Path) -> list[str]:
    """Return which wheels are too large or not stripped, and whether one is missing altogether."""
    wheels = sorted(folder.glob("*.whl"))
    found = [] if wheels else [f"no wheel in {folder}"]
    for wheel in wheels:
        kind = "pure" if wheel.stem.endswith("-none-any") else "compiled"
        size = wheel.stat().st_size / 1e6
        print(f"{wheel.name}: {size:.1f} MB, {kind}, at most {MOST_MB[kind]}")
        found += [f"{wheel.name} has {size:.1f} MB, at most {MOST_MB[kind]}"] if size >= MOST_MB[kind] else []
        with zipfile.ZipFile(wheel) as files:
            extensions = [name for name in files.namelist() if name.endswith((".so", ".pyd"))]
            found += [f"{wheel.name} has no extension"] if kind == "compiled" and not extensions else []
            for name in extensions:
                kept = [section for section in sections(files.read(name)) if section in UNWANTED]
                found += [f"{name} is not stripped: {' '.join(kept)}"] if kept else []
    return found


def sections(binary: bytes) -> list[str]:
    """Return the names of the sections of a 64-bit ELF file; none of other formats."""
    if binary[:6] != b"\x7fELF\x02\x01":
        return []
    (table,) = struct.unpack_from("<Q", binary, 40)
    size, count, names = struct.unpack_from("<HHH", binary, 58)
    heads = [struct.unpack_from("<IIQQQQ", binary, table + size * index) for index in range(count)]
    start = heads[names][4]
    return [binary[start + head[0] : binary.index(b"\0", start + head[0])].decode() for head in heads]


def main() -> None:
    kind, asked = sys.argv[1:]
    found = problems_of_tag(asked) if kind == "tag" else problems_of_files(Path(asked))
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    sys.exit(2 if found else 0)


if __name__ == "__main__":
    main()

"""What is checked of a release: tag, sizes, stripped extensions."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.documents import ROOT


@pytest.fixture(scope="module")
def artifacts() -> ModuleType:
    spec = importlib.util.spec_from_file_location("artifacts", ROOT / ".ci" / "artifacts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel(folder: Path, name: str, **files: bytes) -> None:
    with zipfile.ZipFile(folder / name, "w") as whole:
        for inner, content in files.items():
            whole.writestr(inner.replace("_", "."), content)


def test_this_version_may_be_tagged_and_another_not(artifacts: ModuleType) -> None:
    assert artifacts.problems_of_tag("v0.1.0") == []
    assert len(artifacts.problems_of_tag("v0.0.9")) == 3
    assert artifacts.problems_of_tag("0.1.0") == ["0.1.0 does not begin with v"]


def test_a_heading_without_a_date_is_no_release(artifacts: ModuleType, tmp_path: Path) -> None:
    for name in ("pyproject.toml", "CITATION.cff"):
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "CHANGELOG.md").write_text("## [0.1.0]\n", encoding="utf-8")
    assert artifacts.problems_of_tag("v0.1.0", tmp_path) == ["CHANGELOG.md has no heading [0.1.0] with a date"]


def test_wheels_above_their_size_or_without_extension_are_told(
    artifacts: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert artifacts.problems_of_files(tmp_path) == [f"no wheel in {tmp_path}"]
    wheel(tmp_path, "a-1-py3-none-any.whl", a_py=b"pass")
    assert artifacts.problems_of_files(tmp_path) == []
    wheel(tmp_path, "a-1-cp311-cp311-linux_x86_64.whl", a_py=b"pass")
    assert artifacts.problems_of_files(tmp_path) == ["a-1-cp311-cp311-linux_x86_64.whl has no extension"]
    monkeypatch.setitem(artifacts.MOST_MB, "pure", 0.00001)
    assert "a-1-py3-none-any.whl has 0.0 MB" in artifacts.problems_of_files(tmp_path)[1]


@pytest.mark.skipif(sys.platform != "linux", reason="reads ELF files")
def test_sections_of_a_real_library_are_read_and_symbols_in_a_wheel_are_told(
    artifacts: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = Path(sys.executable).read_bytes()
    assert {".dynsym", ".text"} <= set(artifacts.sections(binary))
    assert artifacts.sections(b"MZ") == []
    monkeypatch.setattr(artifacts, "UNWANTED", (".text",))
    wheel(tmp_path, "a-1-cp311-cp311-linux_x86_64.whl", a_so=binary)
    assert artifacts.problems_of_files(tmp_path) == ["a.so is not stripped: .text"]

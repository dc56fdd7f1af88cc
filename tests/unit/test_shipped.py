"""YAML files that come with servesim."""

from importlib import resources

import pytest
import yaml

from servesim.shipped import shipped_yaml

PACKAGES = ("servesim.hardware", "servesim.launch", "servesim.run", "servesim.versions")
FILES = [
    (package, file.name)
    for package in PACKAGES
    for file in sorted(resources.files(package).iterdir(), key=lambda file: file.name)
    if file.name.endswith(".yaml")
]


@pytest.mark.parametrize(("package", "name"), FILES, ids=lambda part: part)
def test_a_shipped_file_has_the_values_and_types_that_the_parser_in_python_finds(package: str, name: str) -> None:
    text = resources.files(package).joinpath(name).read_text(encoding="utf-8")
    assert repr(shipped_yaml(package, name)) == repr(yaml.safe_load(text))


def test_a_shipped_file_is_read_without_libyaml_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with_it = shipped_yaml("servesim.run", "engines.yaml")
    monkeypatch.delattr(yaml, "CSafeLoader")
    assert shipped_yaml("servesim.run", "engines.yaml") == with_it

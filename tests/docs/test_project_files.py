"""CITATION.cff, NOTICE and CHANGELOG say what the package says; hosted workflows run what there is."""

from __future__ import annotations

import json
import re
import tomllib

import yaml

import servesim
from tests.support.documents import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)  # what the format 1.2.0 demands
    assert citation["version"] == servesim.__version__ == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]


def test_every_dependency_is_in_the_notice() -> None:
    extras = [p for extra, packages in PROJECT["optional-dependencies"].items() if extra != "test" for p in packages]
    names = {re.split(r"[=><\[~ ]", package)[0] for package in (*PROJECT["dependencies"], *extras)} - {"servesim"}
    notice = (ROOT / "NOTICE").read_text()
    assert len(names) > 12
    assert [name for name in sorted(names) if f"{name} (" not in notice] == []


def test_all_data_that_is_installed_is_in_the_notice() -> None:
    notice = (ROOT / "NOTICE").read_text()
    folders = [path.name for path in (ROOT / "calibrate" / "tables").iterdir() if any(path.glob("*.parquet"))]
    named = re.search(r"calibrate/tables/\{(.*)\}", notice)
    assert named is not None
    assert sorted(named[1].split(",")) == sorted(folders)
    data = [*(ROOT / "traces" / "presets").glob("*.json"), *(ROOT / "calibrate" / "tables" / "host").glob("*.yaml")]
    assert [path.name for path in data if path.name not in notice] == []


def test_the_notice_is_installed_with_the_licence() -> None:
    assert {"LICENSE", "NOTICE"} <= set(PROJECT["license-files"])


def test_the_changelog_names_the_version() -> None:
    heads = re.findall(r"^## \[(.*)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
    assert heads[0] == "Unreleased"
    assert PROJECT["version"] in (ROOT / "CHANGELOG.md").read_text()


def test_hosted_workflows_and_hooks_run_targets_of_the_makefile_and_scripts_of_the_project() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    workflows = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / ".github/workflows").glob("*.yml"))]
    steps = [step for flow in workflows for job in flow["jobs"].values() for step in job["steps"]]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    commands = [step["run"] for step in steps if "run" in step] + [hook["entry"] for hook in hooks]
    commands += re.findall(r"^ *(?:part|beside) (make .*|\.ci/.*)", (ROOT / ".ci/run").read_text(), flags=re.M)
    made = {target for command in commands for target in re.findall(r"^make ([a-z-]+)", command)}
    assert {"lint", "quick", "test", "slow", "test-compiled", "package", "nightly"} <= made
    assert made <= targets
    scripts = {script for command in commands for script in re.findall(r"^(?:python )?(\.ci/[a-z.-]+)", command)}
    assert scripts == {".ci/same-bytes", ".ci/without-feature", ".ci/artifacts.py"}
    assert all((ROOT / script).exists() for script in (*scripts, ".ci/package"))


def test_tests_run_on_every_python_that_wheels_are_built_for() -> None:
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())
    tested = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["test"]["strategy"]["matrix"][
        "python"
    ]
    built = [f"3.{minor}" for minor in re.findall(r"cp3(\d+)-", whole["tool"]["cibuildwheel"]["build"])]
    assert tested == built
    assert PROJECT["requires-python"] == f">={tested[0]}"


def test_issue_forms_are_well_formed() -> None:
    forms = [path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"]
    for path in forms:
        form = yaml.safe_load(path.read_text())
        assert {"name", "description", "body"} <= set(form)
        assert {field["type"] for field in form["body"]} <= {"input", "textarea", "checkboxes", "dropdown", "markdown"}
    assert len(forms) == 3


def test_classifiers_name_each_python_that_wheels_are_built_for() -> None:
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())
    built = [f"3.{minor}" for minor in re.findall(r"cp3(\d+)-", whole["tool"]["cibuildwheel"]["build"])]
    named = [line.rpartition(" :: ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert named == built
    installed = yaml.safe_load((ROOT / ".github/workflows/wheels.yml").read_text())["jobs"]["installed"]
    assert installed["strategy"]["matrix"]["python"] == built


def test_containers_have_a_python_that_the_package_supports_and_run_what_there_is() -> None:
    docker = (ROOT / "Dockerfile").read_text()
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    images = [*re.findall(r"^FROM (\S+)", docker, flags=re.M), container["image"]]
    assert len(images) == 3
    pythons = {re.search(r":(3\.\d+)", image)[1] for image in images}  # type: ignore[index]
    assert {f"Programming Language :: Python :: {python}" for python in pythons} <= set(PROJECT["classifiers"])
    extras = re.search(r"install --no-cache-dir '\.\[([\w,]+)\]'", docker)
    assert extras is not None
    assert set(extras[1].split(",")) <= set(PROJECT["optional-dependencies"])
    assert re.search(r"^USER (?!root)\w+$", docker, flags=re.M)
    assert json.loads(docker.partition("ENTRYPOINT ")[2].partition("\n")[0]) == list(PROJECT["scripts"])
    assert container["postCreateCommand"] == "make .venv/.ready"


def test_the_image_gets_every_folder_that_is_installed_and_every_file_of_the_build() -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert {"pyproject.toml", "setup.py", "requirements.lock", "README.md", "LICENSE", "NOTICE"} <= let_in
    assert set(tool["package-dir"].values()) <= let_in
    assert all((ROOT / name).exists() for name in let_in)


def test_nothing_is_published_before_tag_wheels_and_installed_wheels_are_checked() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/wheels.yml").read_text())["jobs"]
    assert set(jobs["publish"]["needs"]) == {"tag", "wheels", "sdist", "installed"}
    assert [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})] == ["publish"]
    assert jobs["publish"]["if"] == "github.ref_type == 'tag'"

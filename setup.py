"""Build settings that pyproject.toml cannot express: `SERVESIM_COMPILE=1 pip install .` compiles the modules below with
mypyc.

They are the hot path, and compiled from the same sources: same bytes, less time. An editable install is never compiled,
since extensions would go on hiding the sources one edits.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.dist import Distribution

COMPILED = {
    "contracts": "cost kv ledger part plan request scheduler",
    "cost": "context_pricing curve curves model sources stage",
    "engine": "checks cluster compose core delivery drafts fleet layout remote_kv replica samples telling waiting",
    "engine/fast": "acceptance_walk context core cost draft_leap leap lockstep lockstep_leap memory replica step"
    " verification",
    "engine/fast/kv": "growth lockstep_tables paged publishing",
    "records": "numbers recorder row spec_stats step",
    "workload": "content front_end samples sessions streamed workload",
    "policies/kv": "_block_tables _extents _prefix_caching paged prefix_hash",
    "policies/scheduling": "_budget _prefill_adder _sglang_batch sglang vllm",
}
"""Modules by package below `servesim`, as installed. In these no bound of a slice may have an effect: of an array mypyc
evaluates it twice."""
STAGED = Path("build", "compiled")
OPTIONS = ("--config-file=", "--ignore-missing-imports")
"""The compiler asks for no more than numpy's types; whether all are right is asked by `mypy --strict`."""
STRIP = {"linux": ["-Wl,--strip-all"], "darwin": ["-Wl,-S,-x"]}
"""Linker arguments that leave out symbols not needed to load a module; Windows keeps them in files of their own."""


def stage() -> list[str]:
    """Copy the packages to STAGED under the names they are installed by; the paths there of what is compiled."""
    tool: dict[str, Any] = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    for name, folder in tool["package-dir"].items():
        shutil.copytree(
            folder, STAGED.joinpath(*name.split(".")), ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
        )
    root = STAGED / "servesim"
    return [str(root / package / f"{name}.py") for package, names in COMPILED.items() for name in names.split()]


def check_compiler() -> None:
    """End with one line where there is nothing to compile with, not after a minute with all that was tried."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "")  # Windows: setuptools finds it
    if compiler and not shutil.which(compiler[0]):
        missing = f"a C compiler, and there is no {compiler[0]} (CC names another)"
    elif not Path(sysconfig.get_path("include"), "Python.h").exists():
        missing = f"Python's headers, and there is no Python.h in {sysconfig.get_path('include')} (python3-dev)"
    else:
        return
    sys.exit(f"error: to compile servesim takes {missing}; without SERVESIM_COMPILE nothing is compiled")


class CompiledDistribution(Distribution):
    """Has extensions, although which is known only when they are built."""

    def has_ext_modules(self) -> bool:
        return True


class Compile(build_ext):
    """Makes extensions of the modules."""

    def finalize_options(self) -> None:
        if {"develop", "editable_wheel"} & self.distribution.command_obj.keys():
            sys.exit("error: an editable install is not compiled: leave out --editable, or SERVESIM_COMPILE")
        check_compiler()
        from mypyc.build import mypycify

        self.distribution.ext_modules = mypycify(
            [*OPTIONS, *stage()], opt_level="3", debug_level="0", multi_file=True, target_dir=str(STAGED)
        )
        for extension in self.distribution.ext_modules:
            extension.extra_link_args = [*extension.extra_link_args, *STRIP.get(sys.platform, [])]
        self.parallel = self.parallel or os.cpu_count()
        super().finalize_options()


if os.environ.get("SERVESIM_COMPILE", "0") not in ("", "0"):
    shutil.rmtree("build", ignore_errors=True)  # extensions of an earlier build would come along
    requires = ["mypy[mypyc]>=2.0", "numpy>=2.0"]
    setup(setup_requires=requires, distclass=CompiledDistribution, cmdclass={"build_ext": Compile})
else:
    setup()

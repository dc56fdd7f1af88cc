"""Python files named by the user, each loaded once as a module."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import linecache
import os
import sys
from pathlib import Path
from types import ModuleType

from servesim.errors import UserError
from servesim.plugins.trust import check_import


def load_file(what: str, path: Path, prefix: str) -> ModuleType:
    """Return the module of a file; raise UserError, with a message that begins with `what`, if it does not load, or if
    it needs the user's permission (servesim.plugins.trust).

    The module's name, made from `prefix`, path and content, distinguishes files and their versions, and keeps classes
    picklable.
    """
    check_import(path)
    key = str(path.resolve()).encode() + b"\0" + path.read_bytes()
    name = f"{prefix}{hashlib.sha256(key).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # Docstrings of settings are read from the source, which may have changed or been loaded as another module.
    linecache.checkcache(str(path))
    inspect.modulesbyfile[os.path.normcase(path.absolute())] = name
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # a file may raise anything, or exit
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        raise UserError(f"{what} file {path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module

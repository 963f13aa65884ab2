"""``install``: ``import jax`` means ``gtrace.jax``."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence

from gtrace.extend import ArgumentError, message

INSTEAD = {
    "jax.experimental.jax2tf": "Export programs with gtrace.export.",
    "jax.experimental.stax": "Use jax.example_libraries.stax.",
    "jax.experimental.optimizers": "Use jax.example_libraries.optimizers.",
}
"""Replacements for missing modules of JAX."""


class _Loader(importlib.abc.Loader):
    """Loads the module of gtrace that stands for one of JAX's."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return importlib.import_module(f"gtrace.{spec.name}")

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: it has been run as a module of gtrace, whose own spec it keeps."""
        module.__spec__ = importlib.util.find_spec(f"gtrace.{module.__name__.removeprefix('gtrace.')}")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds ``jax`` and its submodules in ``gtrace.jax``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] == "jaxlib":
            return None
        if fullname != "jax" and not fullname.startswith("jax."):
            return None
        try:
            found = importlib.util.find_spec(f"gtrace.{fullname}")
        except ModuleNotFoundError:
            found = None
        if found is None:
            fix = INSTEAD.get(fullname, "docs/jax-names.md lists what there is.")
            raise ModuleNotFoundError(f"gtrace has no module for {fullname}. {fix}", name=fullname)
        return importlib.machinery.ModuleSpec(
            fullname, _Loader(), is_package=found.submodule_search_locations is not None
        )


_finder = _Finder()


def install() -> None:
    """Make ``import jax``, in this process and from now on, mean ``gtrace.jax``, whether JAX is installed or not.

    Calling it again does nothing.

    Raises:
        ArgumentError: JAX has been imported already.
    """
    if _finder in sys.meta_path:
        return
    if "jax" in sys.modules:
        fix = "Call gtrace.jax.install() before anything imports jax."
        raise ArgumentError(message("install", "a process that has not imported jax", "one that has", fix))
    sys.meta_path.insert(0, _finder)


def uninstall() -> None:
    """Let ``import jax`` mean JAX again. Modules that have imported it keep what they have."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
        for name in [name for name in sys.modules if name == "jax" or name.startswith("jax.")]:
            del sys.modules[name]

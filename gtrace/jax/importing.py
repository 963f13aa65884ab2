"""``install``: ``import jax`` means ``gtrace.jax``."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import pathlib
import sys
import types
from collections.abc import Iterable, Sequence
from typing import Any

from gtrace.extend import ArgumentError, Jitted, message
from gtrace.jax.adapt import __version__

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

    @staticmethod
    def find_distributions(
        context: importlib.metadata.DistributionFinder.Context,
    ) -> Iterable[importlib.metadata.Distribution]:
        """Return what ``importlib.metadata.version("jax")`` asks for: the version of JAX whose names these are."""
        return [_Named("jax")] if context.name == "jax" else []


class _Named(importlib.metadata.Distribution):
    """A name with a version. It is found by its name alone: lists of what is installed do not have it.

    pip looks at folders, in a process of its own, so it does not meet this class.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def read_text(self, filename: str) -> str | None:
        """Return the metadata; there are no other files."""
        text = f"Metadata-Version: 2.1\nName: {self._name}\nVersion: {__version__}\n"
        return text if filename == "METADATA" else None

    def locate_file(self, path: str | os.PathLike[str]) -> Any:
        """Return where a file would lie: beside gtrace."""
        return pathlib.Path(__file__).parent.parent.parent / path


_JAXLIB: dict[str, dict[str, Any]] = {
    "jaxlib": {"__version__": __version__}, "jaxlib._jax": {"PjitFunction": Jitted},
    "jaxlib.version": {"__version__": __version__},
}  # fmt: skip
"""The modules of jaxlib, with their names."""


class _Jaxlib(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds ``jaxlib`` where it is not installed, with the class of jitted functions: libraries ask for its instances.

    The rest of jaxlib, such as ``jaxlib.xla_extension``, is missing.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        ours = fullname == "jaxlib" or getattr(sys.modules.get("jaxlib"), "__loader__", None) is self
        if fullname not in _JAXLIB or not ours:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=fullname == "jaxlib")

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Take the usual kind of module."""

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module).update(_JAXLIB[module.__name__])

    @staticmethod
    def find_distributions(
        context: importlib.metadata.DistributionFinder.Context,
    ) -> Iterable[importlib.metadata.Distribution]:
        """Return what ``importlib.metadata.version("jaxlib")`` asks for, where it is not installed."""
        return [_Named("jaxlib")] if context.name == "jaxlib" else []


_finder, _jaxlib = _Finder(), _Jaxlib()


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
    sys.meta_path.append(_jaxlib)  # last: an installed one is found before


def uninstall() -> None:
    """Let ``import jax`` mean JAX again. Modules that have imported it keep what they have."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
        sys.meta_path.remove(_jaxlib)
        ours = ("jax", "jaxlib") if getattr(sys.modules.get("jaxlib"), "__loader__", None) is _jaxlib else ("jax",)
        for name in [name for name in sys.modules if name.partition(".")[0] in ours]:
            del sys.modules[name]

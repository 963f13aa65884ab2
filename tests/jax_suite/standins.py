"""Lets JAX's test files run with ``import jax`` meaning ``gtrace.jax``: `install`, then `load` a file.

A test that uses one of JAX's internals is skipped, with its name as the reason. A test that uses a public name of JAX's
which gtrace has not fails. While a file is loaded, both kinds of names are stand-ins that do nothing: a list of cases
may mention them.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
import unittest
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import internals
from internals import REFERENCE_DTYPES


class MissingNameError(AttributeError):
    """A public name of JAX that gtrace has not."""


class Tests:
    """Where the tests come from, and what the one that runs has used."""

    source: Path
    file = ""
    running = False
    used: list[str] = []  # noqa: RUF012 - of the process, as the modules are

    @classmethod
    def skip(cls, name: str) -> NoReturn:
        """Skip the test: it uses an internal name."""
        cls.used.append(name)
        raise unittest.SkipTest(f"internal: {name}")


class Internal:
    """A private name. A test that uses it is skipped; while a file is loaded, anything may be done with it."""

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def _used(self) -> Any:
        if Tests.running:
            Tests.skip(self._name)
        return type(self)(f"{self._name}()")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Skip, or, while a file is loaded, leave a decorated class or function as it is."""
        decorates = len(args) == 1 and not kwargs and isinstance(args[0], (type, types.FunctionType))
        return args[0] if decorates and not Tests.running else self._used()

    def _operator(self, *args: Any) -> Any:
        return self._used()

    __getitem__ = __contains__ = __len__ = __instancecheck__ = __subclasscheck__ = __enter__ = _operator
    __or__ = __ror__ = __add__ = __sub__ = __lt__ = __gt__ = __le__ = __ge__ = _operator

    def __exit__(self, *args: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name == "__name__":
            return self._name
        if name == "dtype" or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        return type(self)(f"{self._name}.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        self._used()

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        self._used()
        return (object,)

    def __iter__(self) -> Iterator[Any]:
        self._used()
        return iter([self])

    def __eq__(self, other: object) -> bool:
        if Tests.running:
            self._used()
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"<{self._name}, which gtrace has not>"


class Missing(Internal):
    """A public name that gtrace has not. A test that uses it fails."""

    def _used(self) -> Any:
        if Tests.running:
            raise MissingNameError(f"gtrace has no {self._name}")
        return Missing(f"{self._name}()")


# ------------------------------------------------------------------------------------------------ modules


def _found(module: str, name: str) -> Any:
    """Return a name of a module of gtrace, None if it has none."""
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
    return None if isinstance(found, Missing) else found


def _private(module: str, name: str) -> Any:
    """Return what stands for ``jax._src.MODULE.NAME``."""
    if (module, name) in internals.CLASSES:
        return internals.CLASSES[module, name]()
    if name in internals.NAMES.get(module, {}):
        return internals.NAMES[module][name]
    if module == "config":
        return internals.NAMES["config"]["config_states"]["jax_" + name.removeprefix("jax_")]
    inner = f"{module}.{name}".lstrip(".")
    if _is_module(inner):
        return importlib.import_module(f"jax._src.{inner}")
    if module == "dtypes":
        return _of_dtypes(name)
    places = [f"gtrace.jax._src.{module}".rstrip(".")]
    parts = module.split(".")
    for size in range(len(parts), 0, -1):
        public = internals.PUBLIC.get(".".join(parts[:size]))
        if public is not None:
            places += [f"gtrace.jax.{p}".rstrip(".") for p in public]
            break
    found = next((f for p in places if (f := _found(p, name)) is not None), None)
    return Internal(f"jax._src.{inner}") if found is None else found


def _of_dtypes(name: str) -> Any:
    """Return a name of ``jax._src.dtypes``: JAX's own, to compare with, but for what is tested itself."""
    if name in internals.OURS_OF_DTYPES or Tests.file == "dtypes_test":
        for module in ("gtrace.jax._src.dtypes", "gtrace.jax.dtypes"):
            if (ours := _found(module, name)) is not None:
                return ours
    theirs = getattr(importlib.import_module(f"jax._src.{REFERENCE_DTYPES}"), name, None)
    return Internal(f"jax._src.dtypes.{name}") if theirs is None else theirs


def _is_module(name: str) -> bool:
    """Return whether ``jax._src.NAME`` is a module."""
    path = Tests.source.joinpath("jax", "_src", *name.split("."))
    known = (internals.PUBLIC, internals.NAMES, internals.SOURCE, {REFERENCE_DTYPES})
    return any(name in k for k in known) or path.with_suffix(".py").exists() or path.is_dir()


class _PrivateModule(types.ModuleType):
    """A module of ``jax._src`` that is not executed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        found = _private(self.__name__.removeprefix("jax._src").lstrip("."), name)
        self.__dict__[name] = found
        return found


class _MissingModule(types.ModuleType):
    """A public module that gtrace has not."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return _stand_in(f"{self.__name__}.{name}")


def _stand_in(name: str) -> Internal:
    """Return what stands for a name that gtrace has not; one beginning with _ is internal wherever it is."""
    return Internal(name) if "._" in name else Missing(name)


class _Loader(importlib.abc.Loader):
    def __init__(self, kind: type[types.ModuleType]) -> None:
        self.kind = kind

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Return an empty one."""
        return self.kind(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Execute JAX's source, where it is one of the modules that are needed as they are."""
        module.__path__ = []
        name = module.__name__.removeprefix("jax._src.")
        if name in internals.SOURCE or name == REFERENCE_DTYPES:
            _execute(name, module)
        elif module.__name__ == "jax.test_util":
            checks = importlib.import_module("jax._src.public_test_util")
            module.__dict__.update({n: getattr(checks, n) for n in ("check_grads", "check_jvp", "check_vjp")})


def _execute(name: str, module: types.ModuleType) -> None:
    file = Tests.source.joinpath("jax", "_src", *name.replace(REFERENCE_DTYPES, "dtypes").split("."))
    file = file.with_suffix(".py")
    text = file.read_text(encoding="utf-8")
    # its checks compare with JAX's promotion, also where gtrace's dtypes are tested
    text = text.replace("from jax._src import dtypes\n", f"from jax._src import {REFERENCE_DTYPES} as dtypes\n")
    text = text.replace("import dtypes as _dtypes", f"import {REFERENCE_DTYPES} as _dtypes")
    module.__file__ = str(file)
    exec(compile(text, str(file), "exec"), module.__dict__)
    if name == REFERENCE_DTYPES:
        module.__dict__["canonicalize_dtype"] = _with_keys(module.__dict__["canonicalize_dtype"])
    elif name == "public_test_util":
        module.__dict__["_dtype"] = _numpys(module.__dict__["_dtype"])
    elif name == "test_util":
        for key in list(vars(module)):
            if key.startswith(internals.COUNTS):
                setattr(module, key, _skipping(f"test_util.{key}"))
        module.__dict__["JaxTestCase"].assertCacheMisses = _skipping("test_util.assertCacheMisses")


def _with_keys(canonical: Callable[..., Any]) -> Callable[..., Any]:
    def canonicalize_dtype(dtype: Any, allow_extended_dtype: bool = False) -> Any:
        return dtype if allow_extended_dtype and str(dtype).startswith("key<") else canonical(dtype)

    return canonicalize_dtype


def _numpys(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that gives dtypes as NumPy's, which JAX's are; those of keys stay."""

    def dtype_of(x: Any) -> Any:
        found = function(x)
        with contextlib.suppress(TypeError):
            return importlib.import_module("numpy").dtype(found)
        return found

    return dtype_of


def _skipping(name: str) -> Callable[..., Any]:
    def skipped(*args: Any, **kwargs: Any) -> NoReturn:
        Tests.skip(name)

    return skipped


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find private modules, and public ones that gtrace has not."""
        kind: type[types.ModuleType]
        if fullname == "jax._src" or fullname.startswith("jax._src.") or fullname == "jax.test_util":
            kind = _PrivateModule
        elif fullname.startswith("jax.") and not _is_ours(fullname):
            kind = _MissingModule
        else:
            return None
        return importlib.machinery.ModuleSpec(fullname, _Loader(kind), is_package=True)


def _is_ours(name: str) -> bool:
    try:
        return importlib.util.find_spec(f"gtrace.{name}") is not None
    except ModuleNotFoundError:
        return False


def install(source: Path) -> None:
    """Make ``import jax`` gtrace's, and ``jax._src`` these stand-ins."""
    Tests.source = source
    importlib.import_module("gtrace.jax").install()
    sys.meta_path.insert(0, _Finder())
    importlib.import_module("jax._src")


# ------------------------------------------------------------------------------------------------ files of tests


def _import_from(module: str, name: str) -> Any:
    """Return what ``from MODULE import NAME`` binds."""
    if module.startswith("jax._src"):
        return getattr(importlib.import_module(module), name)
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:
        full = f"{module}.{name}"
        return importlib.import_module(full) if _is_ours(full) else _stand_in(full)


def _import_as(name: str) -> types.ModuleType:
    """Return what ``import NAME as`` binds: not an attribute of ``jax``, whose ``_src`` is gtrace's own."""
    return importlib.import_module(name)


class _Imports(ast.NodeTransformer):
    """Turns imports from jax into calls of `_import_from` and `_import_as`, which may return stand-ins."""

    def visit_Import(self, node: ast.Import) -> Any:
        """Rewrite ``import jax.module as name``."""
        made: list[ast.stmt] = []
        for alias in node.names:
            if alias.asname and alias.name.startswith("jax."):
                made += ast.parse(f"{alias.asname} = __import_as__({alias.name!r})").body
            else:
                made.append(ast.Import([alias]))
        return [ast.copy_location(line, node) for line in made]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        """Rewrite ``from jax import name``."""
        if node.level or node.module is None or node.module.partition(".")[0] != "jax":
            return node
        calls = [f"{a.asname or a.name} = __import_from__({node.module!r}, {a.name!r})" for a in node.names]
        return [ast.copy_location(ast.parse(line).body[0], node) for line in calls]


@contextlib.contextmanager
def _loading() -> Iterator[None]:
    """While a file is loaded, a public module that lacks a name gives a `Missing` for it."""
    kept = []
    for name, module in list(sys.modules.items()):
        if (name == "gtrace.jax" or name.startswith("gtrace.jax.")) and "._" not in name:
            kept.append((module, module.__dict__.get("__getattr__")))
            module.__dict__["__getattr__"] = _lenient(name.removeprefix("gtrace."), module.__dict__.get("__getattr__"))
    try:
        yield
    finally:
        for module, plain in kept:
            if plain is None:
                del module.__dict__["__getattr__"]
            else:
                module.__dict__["__getattr__"] = plain


def _lenient(module: str, plain: Callable[[str], Any] | None) -> Callable[[str], Any]:
    def found(name: str) -> Any:
        if plain is not None:
            with contextlib.suppress(AttributeError):
                return plain(name)
        if name.startswith("__") or module.startswith("jax._src"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        # dtypes that gtrace has not are those of ml_dtypes, from which JAX has them too
        return getattr(importlib.import_module("ml_dtypes"), name, None) or _stand_in(f"{module}.{name}")

    return found


def load(file: Path) -> types.ModuleType:
    """Return a file of tests as a module."""
    Tests.file = file.stem
    tree = ast.fix_missing_locations(_Imports().visit(ast.parse(file.read_text(encoding="utf-8"))))
    module = types.ModuleType(file.stem)
    module.__dict__.update(__file__=str(file), __import_from__=_import_from, __import_as__=_import_as)
    sys.modules[file.stem] = module
    with _loading():
        exec(compile(tree, str(file), "exec"), module.__dict__)
    return module

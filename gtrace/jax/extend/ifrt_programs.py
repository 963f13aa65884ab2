"""``jax.extend.ifrt_programs``: programs of other runtimes, which gtrace does not run."""

from types import SimpleNamespace

from gtrace.jax.extend.absent import absent_function

__all__ = ["ifrt_programs"]

_NAMES = ("make_hlo_program", "make_plugin_program", "make_plugin_compile_options", "make_xla_compile_options")

ifrt_programs = SimpleNamespace(**{name: absent_function(name) for name in _NAMES})

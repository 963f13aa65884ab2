"""``jax.experimental.colocated_python``: Python functions on the CPU of the process that has the arrays: this one."""

from gtrace.jax.experimental.colocated_python import func as func
from gtrace.jax.experimental.colocated_python import serialization as serialization
from gtrace.jax.experimental.colocated_python.api import colocated_cpu_devices as colocated_cpu_devices
from gtrace.jax.experimental.colocated_python.api import colocated_python as colocated_python
from gtrace.jax.experimental.colocated_python.api import colocated_python_class as colocated_python_class

__all__ = ["colocated_cpu_devices", "colocated_python", "colocated_python_class", "func", "serialization"]

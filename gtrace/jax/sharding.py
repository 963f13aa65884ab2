"""``jax.sharding``: gtrace's own meshes and layouts, under JAX's names."""

from gtrace.jax.adapt import namespace
from gtrace.sharding import Mesh as Mesh
from gtrace.sharding import NamedSharding as NamedSharding
from gtrace.sharding import PartitionSpec as PartitionSpec

Sharding = NamedSharding
"""The class that programs name in annotations and ``isinstance``: there is one kind of layout."""

__getattr__, __dir__ = namespace("jax.sharding")

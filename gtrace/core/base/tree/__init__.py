"""Pytrees: nested dict, list, tuple, namedtuple, None and registered classes, with arrays as leaves.

optree does the work, under the namespace "gtrace". As in JAX, None is an empty subtree and dicts are visited in
sorted key order.
"""

from gtrace.tree.keys import DictKey as DictKey
from gtrace.tree.keys import FlattenedIndexKey as FlattenedIndexKey
from gtrace.tree.keys import GetAttrKey as GetAttrKey
from gtrace.tree.keys import KeyEntry as KeyEntry
from gtrace.tree.keys import KeyPath as KeyPath
from gtrace.tree.keys import SequenceKey as SequenceKey
from gtrace.tree.keys import flatten_with_path as flatten_with_path
from gtrace.tree.keys import keystr as keystr
from gtrace.tree.keys import leaves_with_path as leaves_with_path
from gtrace.tree.keys import map_with_path as map_with_path
from gtrace.tree.nodes import Partial as Partial
from gtrace.tree.nodes import register as register
from gtrace.tree.nodes import register_dataclass as register_dataclass
from gtrace.tree.nodes import register_immutable as register_immutable
from gtrace.tree.nodes import register_pytree_node as register_pytree_node
from gtrace.tree.nodes import register_pytree_node_class as register_pytree_node_class
from gtrace.tree.nodes import register_pytree_with_keys as register_pytree_with_keys
from gtrace.tree.nodes import register_pytree_with_keys_class as register_pytree_with_keys_class
from gtrace.tree.nodes import register_static as register_static
from gtrace.tree.nodes import static as static
from gtrace.tree.structure import NAMESPACE as NAMESPACE
from gtrace.tree.structure import TreeDef as TreeDef
from gtrace.tree.structure import all as all
from gtrace.tree.structure import all_leaves as all_leaves
from gtrace.tree.structure import broadcast as broadcast
from gtrace.tree.structure import children as children
from gtrace.tree.structure import flatten as flatten
from gtrace.tree.structure import is_leaf as is_leaf
from gtrace.tree.structure import is_tuple as is_tuple
from gtrace.tree.structure import leaves as leaves
from gtrace.tree.structure import map as map
from gtrace.tree.structure import number_keys as number_keys
from gtrace.tree.structure import paths as paths
from gtrace.tree.structure import reduce as reduce
from gtrace.tree.structure import structure as structure
from gtrace.tree.structure import transpose as transpose
from gtrace.tree.structure import tuple_of as tuple_of
from gtrace.tree.structure import unflatten as unflatten

"""Pytrees: nested dict, list, tuple, namedtuple, None and registered classes, with arrays as leaves."""

from gtrace.core.base.public_names import publish as _publish
from gtrace.core.base.tree.keys import *
from gtrace.core.base.tree.nodes import *
from gtrace.core.base.tree.treedef import *

_publish(globals(), "gtrace.core.base.tree")

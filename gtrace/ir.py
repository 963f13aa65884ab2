"""The IR: graphs in single static assignment form, their text, their rules, and the passes that rewrite them.

`gtrace.make_graph` records the graph of a function, ``gtrace.jit(f).lower(...).graph`` is its canonical form, and
`gtrace.from_graph` makes a function of a graph. docs/ir.md has the grammar, the rules and worked examples.
"""

from gtrace.core.base.dtypes import DTYPES
from gtrace.core.base.public_names import publish as _publish
from gtrace.core.ir.aval import Aval, Bundle, aval, bundle
from gtrace.core.ir.build import Builder, Value, ops
from gtrace.core.ir.difference import difference, differences
from gtrace.core.ir.edit import inline, renumber, substitute, toposort
from gtrace.core.ir.evaluate import evaluate
from gtrace.core.ir.graph import Graph, Node, Scalar, Subgraph, print_graph
from gtrace.core.ir.op import Instr, Op
from gtrace.core.ir.pipeline import Pass, Pipeline
from gtrace.core.ir.signature import Signature, short, sign
from gtrace.core.ir.simplify import (
    cse,
    dce,
    fold,
    join_parts,
    merge_batches,
    move_transposes,
    order_operands,
    remove_identities,
)
from gtrace.core.ir.subgraph import SUBGRAPH, select, subgraph
from gtrace.core.ir.text import parse_graph
from gtrace.core.ir.verify import verify
from gtrace.core.passes.canonical import CANONICAL, Canonical, canonicalize
from gtrace.core.passes.partial_eval import partial_eval
from gtrace.core.passes.user_passes import Registration, register_pass, unregister_pass

_publish(globals(), "gtrace.core.ir", "gtrace.core.passes")

"""The IR: graphs in single static assignment form, their text, their rules, and the passes that rewrite them.

`gtrace.make_graph` records the graph of a function, ``gtrace.jit(f).lower(...).graph`` is its canonical form, and
`gtrace.from_graph` makes a function of a graph. docs/ir.md has the grammar, the rules and worked examples.
"""

from gtrace.ir.aval import DTYPES, Aval, Bundle, aval, bundle
from gtrace.ir.build import Builder, Value, ops
from gtrace.ir.canonical import CANONICAL, Canonical, canonicalize
from gtrace.ir.difference import difference, differences
from gtrace.ir.edit import inline, renumber, substitute, toposort
from gtrace.ir.evaluate import evaluate
from gtrace.ir.graph import Graph, Node, Scalar, Subgraph, print_graph
from gtrace.ir.op import Instr, Op
from gtrace.ir.partial_eval import partial_eval
from gtrace.ir.passes import Pass, Pipeline
from gtrace.ir.signature import Signature, short, sign
from gtrace.ir.simplify import (
    cse,
    dce,
    fold,
    join_parts,
    merge_batches,
    move_transposes,
    order_operands,
    remove_identities,
)
from gtrace.ir.subgraph import SUBGRAPH, select, subgraph
from gtrace.ir.text import parse_graph
from gtrace.ir.user_passes import Registration, register_pass, unregister_pass
from gtrace.ir.verify import verify

"""``jax.experimental.sparse``: arrays that store some of their elements, in coordinates or in compressed rows.

Products with dense arrays, and derivatives in the stored elements, touch these alone.
"""

from gtrace.jax.experimental.sparse import _arithmetic as _arithmetic
from gtrace.jax.experimental.sparse import linalg as linalg
from gtrace.jax.experimental.sparse._axes import bcoo_broadcast_in_dim as bcoo_broadcast_in_dim
from gtrace.jax.experimental.sparse._axes import bcoo_concatenate as bcoo_concatenate
from gtrace.jax.experimental.sparse._axes import bcoo_dynamic_slice as bcoo_dynamic_slice
from gtrace.jax.experimental.sparse._axes import bcoo_reduce_sum as bcoo_reduce_sum
from gtrace.jax.experimental.sparse._axes import bcoo_reshape as bcoo_reshape
from gtrace.jax.experimental.sparse._axes import bcoo_rev as bcoo_rev
from gtrace.jax.experimental.sparse._axes import bcoo_slice as bcoo_slice
from gtrace.jax.experimental.sparse._axes import bcoo_squeeze as bcoo_squeeze
from gtrace.jax.experimental.sparse._axes import bcoo_transpose as bcoo_transpose
from gtrace.jax.experimental.sparse._axes import bcoo_update_layout as bcoo_update_layout
from gtrace.jax.experimental.sparse._base import JAXSparse as JAXSparse
from gtrace.jax.experimental.sparse._base import SparseEfficiencyError as SparseEfficiencyError
from gtrace.jax.experimental.sparse._base import SparseEfficiencyWarning as SparseEfficiencyWarning
from gtrace.jax.experimental.sparse._coordinates import BCOO as BCOO
from gtrace.jax.experimental.sparse._derivatives import empty as empty
from gtrace.jax.experimental.sparse._derivatives import eye as eye
from gtrace.jax.experimental.sparse._derivatives import grad as grad
from gtrace.jax.experimental.sparse._derivatives import jacfwd as jacfwd
from gtrace.jax.experimental.sparse._derivatives import jacobian as jacobian
from gtrace.jax.experimental.sparse._derivatives import jacrev as jacrev
from gtrace.jax.experimental.sparse._derivatives import random_bcoo as random_bcoo
from gtrace.jax.experimental.sparse._derivatives import value_and_grad as value_and_grad
from gtrace.jax.experimental.sparse._elements import bcoo_eliminate_zeros as bcoo_eliminate_zeros
from gtrace.jax.experimental.sparse._elements import bcoo_extract as bcoo_extract
from gtrace.jax.experimental.sparse._elements import bcoo_fromdense as bcoo_fromdense
from gtrace.jax.experimental.sparse._elements import bcoo_sort_indices as bcoo_sort_indices
from gtrace.jax.experimental.sparse._elements import bcoo_sum_duplicates as bcoo_sum_duplicates
from gtrace.jax.experimental.sparse._elements import bcoo_todense as bcoo_todense
from gtrace.jax.experimental.sparse._products import bcoo_dot_general as bcoo_dot_general
from gtrace.jax.experimental.sparse._products import bcoo_dot_general_sampled as bcoo_dot_general_sampled
from gtrace.jax.experimental.sparse._products import bcoo_multiply_dense as bcoo_multiply_dense
from gtrace.jax.experimental.sparse._products import bcoo_multiply_sparse as bcoo_multiply_sparse
from gtrace.jax.experimental.sparse._rows import BCSR as BCSR
from gtrace.jax.experimental.sparse._rows import bcsr_broadcast_in_dim as bcsr_broadcast_in_dim
from gtrace.jax.experimental.sparse._rows import bcsr_concatenate as bcsr_concatenate
from gtrace.jax.experimental.sparse._rows import bcsr_dot_general as bcsr_dot_general
from gtrace.jax.experimental.sparse._rows import bcsr_extract as bcsr_extract
from gtrace.jax.experimental.sparse._rows import bcsr_fromdense as bcsr_fromdense
from gtrace.jax.experimental.sparse._rows import bcsr_sum_duplicates as bcsr_sum_duplicates
from gtrace.jax.experimental.sparse._rows import bcsr_todense as bcsr_todense
from gtrace.jax.experimental.sparse._sparsify import sparsify as sparsify
from gtrace.jax.experimental.sparse._sparsify import todense as todense

__all__ = [
    "BCOO",
    "BCSR",
    "JAXSparse",
    "SparseEfficiencyError",
    "SparseEfficiencyWarning",
    "bcoo_broadcast_in_dim",
    "bcoo_concatenate",
    "bcoo_dot_general",
    "bcoo_dot_general_sampled",
    "bcoo_dynamic_slice",
    "bcoo_eliminate_zeros",
    "bcoo_extract",
    "bcoo_fromdense",
    "bcoo_multiply_dense",
    "bcoo_multiply_sparse",
    "bcoo_reduce_sum",
    "bcoo_reshape",
    "bcoo_rev",
    "bcoo_slice",
    "bcoo_sort_indices",
    "bcoo_squeeze",
    "bcoo_sum_duplicates",
    "bcoo_todense",
    "bcoo_transpose",
    "bcoo_update_layout",
    "bcsr_broadcast_in_dim",
    "bcsr_concatenate",
    "bcsr_dot_general",
    "bcsr_extract",
    "bcsr_fromdense",
    "bcsr_sum_duplicates",
    "bcsr_todense",
    "empty",
    "eye",
    "grad",
    "jacfwd",
    "jacobian",
    "jacrev",
    "linalg",
    "random_bcoo",
    "sparsify",
    "todense",
    "value_and_grad",
]

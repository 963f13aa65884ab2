"""JAX's own kernels by their names, so that libraries that name them load. Calling one raises an error."""

from gtrace.jax.adapt import module_of_names
from gtrace.jax.experimental.pallas import absent
from gtrace.jax.extend.absent import absent_class, refuse_kernel

PACKAGE = "jax.experimental.pallas.ops"

_NAMES = """
gpu.attention: BlockSizes mha mha_reference segment_mask
gpu.decode_attention: decode_attn_unbatched gqa gqa_reference mha_reference mqa mqa_reference
gpu.layer_norm: layer_norm layer_norm_backward layer_norm_forward layer_norm_reference
gpu.paged_attention: paged_attention paged_attention_reference paged_attention_unbatched
gpu.rms_norm: rms_norm rms_norm_backward rms_norm_forward rms_norm_reference
gpu.softmax: softmax
tpu.all_gather: ag_kernel all_gather get_neighbor
tpu.example_kernel: double
tpu.flash_attention: BlockSizes SegmentIds flash_attention mha_reference mha_reference_bwd mha_reference_no_custom_vjp
tpu.matmul: matmul
tpu.megablox: gmm
tpu.megablox.gmm: gmm make_group_metadata tgmm
tpu.paged_attention: paged_attention
tpu.paged_attention.paged_attention_kernel: paged_attention
tpu.paged_attention.quantization_utils: QuantizedTensor from_int8 quantize_to_int8 to_int8 unquantize_from_int8
tpu.ragged_paged_attention: ragged_paged_attention
tpu.ragged_paged_attention.kernel: ragged_paged_attention ref_ragged_paged_attention
tpu.random.philox: philox_4x32 philox_fold_in philox_random_bits philox_split
tpu.random.threefry: plthreefry_random_bits threefry_2x32_count
tpu.splash_attention: BlockSizes CausalMask FullMask LocalMask Mask MultiHeadMask NumpyMask QKVLayout SegmentIds
tpu.splash_attention: make_causal_mask make_local_attention_mask make_masked_mha_reference make_masked_mqa_reference
tpu.splash_attention: make_random_mask make_splash_mha make_splash_mha_single_device make_splash_mqa
tpu.splash_attention: make_splash_mqa_single_device
tpu.splash_attention.splash_attention_kernel: BlockSizes QKVLayout SegmentIds SplashAttentionKernel attention_reference
tpu.splash_attention.splash_attention_kernel: make_masked_mha_reference make_masked_mqa_reference make_splash_mha
tpu.splash_attention.splash_attention_kernel: make_splash_mha_single_device make_splash_mqa
tpu.splash_attention.splash_attention_kernel: make_splash_mqa_single_device
tpu.splash_attention.splash_attention_mask: CausalMask ChunkedCausalMask FullMask LocalMask LogicalAnd LogicalOr Mask
tpu.splash_attention.splash_attention_mask: MultiHeadMask NumpyMask make_causal_mask make_chunk_attention_mask
tpu.splash_attention.splash_attention_mask: make_local_attention_mask make_random_mask
"""
"""The modules with their names; a class begins with a capital letter."""


def add_modules() -> None:
    """Add the modules of ``jax.experimental.pallas.ops``, packages first."""
    modules: dict[str, dict[str, object]] = {"gpu": {}, "tpu": {}, "tpu.random": {}}
    for line in _NAMES.strip().splitlines():
        module, _, names = line.partition(": ")
        for name in names.split():
            made = absent_class(name, refuse_kernel) if name[0].isupper() else absent(name)
            modules.setdefault(module, {})[name] = made
    for module in sorted(modules):
        _add(f"{PACKAGE}.{module}", modules[module])


def _add(full: str, names: dict[str, object]) -> None:
    def get(name: str) -> object:
        if name in names:
            return names[name]
        raise AttributeError(f"{full} has no name {name!r}", name=name)

    made = module_of_names(full, get, lambda: sorted(names))
    for name in names.keys() & vars(made).keys():
        setattr(made, name, names[name])

"""The models of timm that torch_models.py compares: small variants of its families, some made smaller."""

from __future__ import annotations

from typing import Any

SIZE = {"img_size": 64}
SHALLOW = {"img_size": 64, "depth": 2}
NARROW = {"img_size": 64, "depth": 2, "embed_dim": 48, "num_heads": 4}
WINDOWS = {"img_size": 64, "window_size": 4, "embed_dim": 24, "depths": (1, 1), "num_heads": (2, 4)}

TIMM: dict[str, dict[str, Any]] = {
    # convolutions
    "resnet18": {}, "resnetv2_18": {}, "seresnet18": {}, "skresnet18": {}, "resnest14d": {}, "res2net50_14w_8s": {},
    "cspresnet50": {}, "regnetx_002": {}, "gernet_s": {}, "repvgg_a0": {}, "selecsls42": {}, "tresnet_m": {},
    "mobilenetv3_small_050": {}, "mobilenetv4_conv_small_035": {}, "efficientnet_b0": {}, "mnasnet_small": {},
    "fbnetc_100": {}, "hardcorenas_a": {}, "lcnet_050": {}, "tinynet_e": {}, "rexnet_100": {}, "ghostnet_050": {},
    "repghostnet_050": {}, "densenet121": {"growth_rate": 4, "block_config": (2, 2, 2, 2)}, "dla46_c": {},
    "dpn48b": {}, "hgnetv2_b0": {}, "hrnet_w18_small": {}, "ese_vovnet19b_slim": {}, "xception41": {},
    "nf_regnet_b0": {}, "convnext_atto": {}, "convnextv2_atto": {}, "inception_next_atto": {}, "rdnet_tiny": {},
    "starnet_s1": {}, "mambaout_femto": {}, "fasternet_t0": {}, "lambda_resnet26t": {},
    # transformers, and what mixes
    "vit_tiny_patch16_224": SIZE, "deit_tiny_patch16_224": SHALLOW, "vit_relpos_small_patch16_224": SHALLOW,
    "vit_tiny_r_s16_p8_224": SHALLOW, "samvit_base_patch16": {**NARROW, "global_attn_indexes": (1,)},
    "naflexvit_base_patch16_gap": {"depth": 2, "embed_dim": 48, "num_heads": 4}, "beit_base_patch16_224": NARROW,
    "eva02_tiny_patch14_224": {**SHALLOW, "patch_size": 16}, "cait_xxs24_224": SHALLOW, "convit_tiny": SHALLOW,
    "xcit_nano_12_p16_224": SHALLOW, "coat_tiny": SIZE, "pit_ti_224": SIZE, "tnt_s_patch16_224": SHALLOW,
    "crossvit_tiny_240": {}, "swin_tiny_patch4_window7_224": WINDOWS, "swinv2_tiny_window8_256": WINDOWS,
    "swinv2_cr_tiny_224": WINDOWS, "hiera_tiny_224": {"img_size": 64, "embed_dim": 24}, "mvitv2_tiny": SIZE,
    "davit_tiny": {"depths": (1, 1, 1, 1)}, "gcvit_xxtiny": SIZE, "nest_tiny": SIZE, "twins_svt_small": SIZE,
    "pvt_v2_b0": {}, "visformer_tiny": SIZE, "volo_d1_224": SIZE, "mixer_s32_224": SIZE, "resmlp_12_224": SIZE,
    "gmlp_ti16_224": SIZE, "sequencer2d_s": {}, "poolformer_s12": {},
    # convolutions and attention
    "coatnet_pico_rw_224": SIZE, "maxvit_pico_rw_256": SIZE, "mobilevit_xxs": {}, "mobilevitv2_050": {},
    "edgenext_xx_small": {}, "efficientformerv2_s0": SIZE,
    "efficientvit_b0": {}, "efficientvit_m0": {}, "efficientvim_m1": {}, "fastvit_t8": {}, "iformer_t": {},
    "levit_128s": SIZE, "repvit_m0_9": {}, "shvit_s1": {}, "swiftformer_xs": {}, "tiny_vit_5m_224": {},
    "botnet26t_256": SIZE, "eca_botnext26ts_256": SIZE,
}  # fmt: skip
"""By name: the arguments that make it small."""

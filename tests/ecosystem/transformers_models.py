"""The models of transformers that torch_models.py compares: by class, how each is made small."""

from __future__ import annotations

from typing import Any

import torch

SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 99,
    "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
SHORT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99, "n_positions": 64}
PAIR = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 99, "max_position_embeddings": 64, "pad_token_id": 1,
    "decoder_start_token_id": 0, "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
T5 = {
    "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 99,
    "decoder_start_token_id": 0,
}  # fmt: skip
FEW = {**SMALL, "num_key_value_heads": 2}
HEADS = {**FEW, "head_dim": 8}
EXPERTS = {
    **HEADS, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
}  # fmt: skip
LATENT = {
    **SMALL, "num_key_value_heads": 4, "moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8, "n_group": 1,
    "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip
PATCHES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
SOUND = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 99,
    "conv_dim": (16, 16), "conv_stride": (5, 4), "conv_kernel": (10, 8), "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 2, "apply_spec_augment": False,
    "mask_time_prob": 0.0, "layerdrop": 0.0,
}  # fmt: skip
IDS = torch.arange(20).reshape(2, 10) * 7 % 90 + 3
MASK = torch.ones(2, 10, dtype=torch.long)
MASK[1, 7:] = 0
IMAGES = torch.linspace(-1, 1, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32)
WAVE = torch.sin(torch.arange(2 * 400.0).reshape(2, 400) * 0.1)
BOXES = (torch.arange(80).reshape(2, 10, 4) * 3 % 40).sort(-1).values
PICTURED = torch.cat([torch.full((2, 16), 3), IDS + 1], 1)
TEXT = {"input_ids": IDS, "attention_mask": MASK}
CAUSAL = {**TEXT, "labels": IDS, "use_cache": False}
UNMASKED = {"input_ids": IDS, "labels": IDS, "use_cache": False}
SEEN = {"pixel_values": IMAGES}
VIDEO = {"pixel_values": torch.linspace(-1, 1, 2 * 4 * 3 * 32 * 32).reshape(2, 4, 3, 32, 32)}
BOTH = {**TEXT, **SEEN}
HEARD = {"input_values": WAVE}
SEEING = {"text_config": SMALL, "vision_config": PATCHES}
SERIES = torch.sin(torch.arange(2 * 32.0 * 3).reshape(2, 32, 3) * 0.3)
FORECAST = {
    "past_values": SERIES[:, :20, 0], "past_time_features": torch.zeros(2, 20, 1),
    "past_observed_mask": torch.ones(2, 20), "future_values": SERIES[:, 20:26, 0],
    "future_time_features": torch.zeros(2, 6, 1),
}  # fmt: skip
FORECASTER = {
    "prediction_length": 6, "context_length": 14, "lags_sequence": [1, 2, 6], "num_time_features": 1, "d_model": 32,
    "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
}  # fmt: skip

TRANSFORMERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # text: encoders
    "BertForMaskedLM": ("BertConfig", SMALL, {**TEXT, "labels": IDS}),
    "RobertaModel": ("RobertaConfig", SMALL, TEXT),
    "XLMRobertaForTokenClassification": ("XLMRobertaConfig", SMALL, {**TEXT, "labels": IDS % 2}),
    "RobertaPreLayerNormModel": ("RobertaPreLayerNormConfig", SMALL, TEXT),
    "CamembertForSequenceClassification": ("CamembertConfig", SMALL, {**TEXT, "labels": torch.tensor([0, 1])}),
    "DistilBertModel": ("DistilBertConfig", {
        "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "vocab_size": 99}, TEXT),
    "AlbertModel": ("AlbertConfig", {**SMALL, "embedding_size": 16}, TEXT),
    "ElectraModel": ("ElectraConfig", {**SMALL, "embedding_size": 16}, TEXT),
    "DebertaModel": ("DebertaConfig", {**SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, TEXT),
    "DebertaV2Model": ("DebertaV2Config", {**SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, TEXT),
    "MPNetModel": ("MPNetConfig", SMALL, TEXT),
    "ModernBertModel": ("ModernBertConfig", {**SMALL, "local_attention": 8}, TEXT),
    "NomicBertModel": ("NomicBertConfig", SMALL, TEXT),
    "EuroBertModel": ("EuroBertConfig", FEW, TEXT),
    "ConvBertModel": ("ConvBertConfig", {**SMALL, "embedding_size": 32}, TEXT),
    "BigBirdModel": ("BigBirdConfig", {**SMALL, "attention_type": "original_full"}, TEXT),
    "CanineModel": ("CanineConfig", {
        **SMALL, "num_hash_buckets": 50, "num_hash_functions": 4, "downsampling_rate": 2,
        "local_transformer_stride": 4},
        TEXT),
    "Data2VecTextModel": ("Data2VecTextConfig", SMALL, TEXT),
    "ErnieModel": ("ErnieConfig", SMALL, TEXT),
    "EsmModel": ("EsmConfig", {**SMALL, "position_embedding_type": "rotary", "token_dropout": False}, TEXT),
    "FNetModel": ("FNetConfig", SMALL, {"input_ids": IDS}),
    "FunnelModel": ("FunnelConfig", {
        "vocab_size": 99, "block_sizes": [1, 1], "num_decoder_layers": 1, "d_model": 32, "n_head": 4, "d_head": 8,
        "d_inner": 64}, TEXT),
    "FlaubertModel": ("FlaubertConfig", {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "n_words": 99}, TEXT),
    "XLMModel": ("XLMConfig", {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "n_words": 99}, TEXT),
    "XmodModel": ("XmodConfig", {**SMALL, "languages": ["a", "b"], "default_language": "a"}, TEXT),
    "IBertModel": ("IBertConfig", SMALL, TEXT),
    "LayoutLMModel": ("LayoutLMConfig", SMALL, {**TEXT, "bbox": BOXES}),
    "LiltModel": ("LiltConfig", {**SMALL, "hidden_size": 48}, {**TEXT, "bbox": BOXES}),
    "LongformerModel": ("LongformerConfig", {**SMALL, "attention_window": 4}, TEXT),
    "LukeModel": ("LukeConfig", {**SMALL, "entity_vocab_size": 9, "entity_emb_size": 8}, TEXT),
    "MegatronBertModel": ("MegatronBertConfig", SMALL, TEXT),
    "MobileBertModel": ("MobileBertConfig", {
        **SMALL, "embedding_size": 16, "true_hidden_size": 16, "intra_bottleneck_size": 16}, TEXT),
    "MraModel": ("MraConfig", SMALL, TEXT),
    "NystromformerModel": ("NystromformerConfig", {**SMALL, "num_landmarks": 2, "segment_means_seq_len": 10}, {
        "input_ids": IDS, "attention_mask": MASK[:, None, None].float()}),
    "PerceiverModel": ("PerceiverConfig", {
        "num_latents": 8, "d_latents": 32, "d_model": 32, "num_self_attends_per_block": 2,
        "num_self_attention_heads": 4,
        "num_cross_attention_heads": 4}, {"inputs": torch.sin(torch.arange(640.0)).reshape(2, 10, 32)}),
    "RemBertModel": ("RemBertConfig", {**SMALL, "input_embedding_size": 16, "output_embedding_size": 16}, TEXT),
    "RoCBertModel": ("RoCBertConfig", {
        **SMALL, "pronunciation_vocab_size": 99, "shape_vocab_size": 99, "pronunciation_embed_dim": 8,
        "shape_embed_dim": 8}, {**TEXT, "input_shape_ids": IDS, "input_pronunciation_ids": IDS}),
    "RoFormerModel": ("RoFormerConfig", SMALL, TEXT),
    "SplinterModel": ("SplinterConfig", SMALL, TEXT),
    "SqueezeBertModel": ("SqueezeBertConfig", {**SMALL, "embedding_size": 32}, TEXT),
    "TapasModel": ("TapasConfig", {**SMALL, "type_vocab_sizes": [3, 99, 99, 2, 99, 99, 9]}, {
        **TEXT, "token_type_ids": torch.zeros(2, 10, 7, dtype=torch.long)}),
    "XLNetModel": ("XLNetConfig", {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64, "vocab_size": 99}, TEXT),
    "YosoModel": ("YosoConfig", {**SMALL, "use_expectation": True}, TEXT),
    "T5EncoderModel": ("T5Config", T5, TEXT),
    # text: causal language models
    "GPT2LMHeadModel": ("GPT2Config", SHORT, CAUSAL),
    "OpenAIGPTLMHeadModel": ("OpenAIGPTConfig", SHORT, {**TEXT, "labels": IDS}),
    "GPTNeoForCausalLM": ("GPTNeoConfig", {
        "hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]],
        "window_size": 4, "vocab_size": 99, "max_position_embeddings": 64}, CAUSAL),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", SMALL, CAUSAL),
    "GPTJForCausalLM": ("GPTJConfig", {**SHORT, "rotary_dim": 4}, CAUSAL),
    "GPTBigCodeForCausalLM": ("GPTBigCodeConfig", SHORT, CAUSAL),
    "CodeGenForCausalLM": ("CodeGenConfig", {**SHORT, "rotary_dim": 4, "n_ctx": 64}, CAUSAL),
    "CTRLLMHeadModel": ("CTRLConfig", {**SHORT, "dff": 64}, CAUSAL),
    "BioGptForCausalLM": ("BioGptConfig", SMALL, CAUSAL),
    "BloomForCausalLM": ("BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99}, CAUSAL),
    "FalconForCausalLM": ("FalconConfig", SMALL, CAUSAL),
    "OPTForCausalLM": ("OPTConfig", {**SMALL, "ffn_dim": 64, "word_embed_proj_dim": 32}, CAUSAL),
    "XGLMForCausalLM": ("XGLMConfig", {
        "d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 64, "vocab_size": 99,
        "max_position_embeddings": 64}, CAUSAL),
    "MptForCausalLM": ("MptConfig", {"d_model": 32, "n_layers": 2, "n_heads": 4, "vocab_size": 99}, CAUSAL),
    "LlamaForCausalLM": ("LlamaConfig", FEW, CAUSAL),
    "MistralForCausalLM": ("MistralConfig", {**FEW, "sliding_window": 4}, CAUSAL),
    "MixtralForCausalLM": ("MixtralConfig", {**FEW, "num_local_experts": 3, "num_experts_per_tok": 2}, CAUSAL),
    "Qwen2ForCausalLM": ("Qwen2Config", FEW, CAUSAL),
    "Qwen2MoeForCausalLM": ("Qwen2MoeConfig", {**EXPERTS, "shared_expert_intermediate_size": 16}, CAUSAL),
    "Qwen3ForCausalLM": ("Qwen3Config", HEADS, CAUSAL),
    "Qwen3MoeForCausalLM": ("Qwen3MoeConfig", EXPERTS, CAUSAL),
    "Qwen3NextForCausalLM": ("Qwen3NextConfig", {
        **EXPERTS, "shared_expert_intermediate_size": 16, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"]},
        CAUSAL),
    "GemmaForCausalLM": ("GemmaConfig", HEADS, CAUSAL),
    "Gemma2ForCausalLM": ("Gemma2Config", {**HEADS, "sliding_window": 4}, CAUSAL),
    "Gemma3ForCausalLM": ("Gemma3TextConfig", {**HEADS, "sliding_window": 4}, CAUSAL),
    "PhiForCausalLM": ("PhiConfig", SMALL, CAUSAL),
    "Phi3ForCausalLM": ("Phi3Config", FEW, CAUSAL),
    "PhimoeForCausalLM": ("PhimoeConfig", {**EXPERTS}, CAUSAL),
    "OlmoForCausalLM": ("OlmoConfig", SMALL, CAUSAL),
    "Olmo2ForCausalLM": ("Olmo2Config", FEW, CAUSAL),
    "OlmoeForCausalLM": ("OlmoeConfig", EXPERTS, CAUSAL),
    "CohereForCausalLM": ("CohereConfig", FEW, CAUSAL),
    "Cohere2ForCausalLM": ("Cohere2Config", {**FEW, "sliding_window": 4}, CAUSAL),
    "StableLmForCausalLM": ("StableLmConfig", FEW, CAUSAL),
    "Starcoder2ForCausalLM": ("Starcoder2Config", FEW, CAUSAL),
    "PersimmonForCausalLM": ("PersimmonConfig", SMALL, CAUSAL),
    "GraniteForCausalLM": ("GraniteConfig", FEW, CAUSAL),
    "GraniteMoeForCausalLM": ("GraniteMoeConfig", EXPERTS, CAUSAL),
    "GlmForCausalLM": ("GlmConfig", HEADS, CAUSAL),
    "Glm4ForCausalLM": ("Glm4Config", HEADS, CAUSAL),
    "HeliumForCausalLM": ("HeliumConfig", HEADS, CAUSAL),
    "NemotronForCausalLM": ("NemotronConfig", HEADS, CAUSAL),
    "SmolLM3ForCausalLM": ("SmolLM3Config", FEW, CAUSAL),
    "ArceeForCausalLM": ("ArceeConfig", FEW, CAUSAL),
    "ApertusForCausalLM": ("ApertusConfig", FEW, CAUSAL),
    "DiffLlamaForCausalLM": ("DiffLlamaConfig", FEW, CAUSAL),
    "Ernie4_5ForCausalLM": ("Ernie4_5Config", HEADS, CAUSAL),
    "Exaone4ForCausalLM": ("Exaone4Config", {**FEW, "sliding_window": 4, "sliding_window_pattern": 2}, CAUSAL),
    "SeedOssForCausalLM": ("SeedOssConfig", HEADS, CAUSAL),
    "GptOssForCausalLM": ("GptOssConfig", {**EXPERTS, "sliding_window": 4}, CAUSAL),
    "DeepseekV2ForCausalLM": ("DeepseekV2Config", LATENT, CAUSAL),
    "DeepseekV3ForCausalLM": ("DeepseekV3Config", LATENT, CAUSAL),
    "JetMoeForCausalLM": ("JetMoeConfig", {**FEW, "kv_channels": 8, "num_local_experts": 4}, CAUSAL),
    "MambaForCausalLM": ("MambaConfig", {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 99}, UNMASKED),
    "FalconMambaForCausalLM": ("FalconMambaConfig", {
        "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 99}, UNMASKED),
    "Mamba2ForCausalLM": ("Mamba2Config", {
        "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 99, "num_heads": 8, "head_dim": 8, "state_size": 8,
        "n_groups": 2, "chunk_size": 4}, UNMASKED),
    "BambaForCausalLM": ("BambaConfig", {
        **FEW, "attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8,
        "mamba_chunk_size": 4}, CAUSAL),
    "JambaForCausalLM": ("JambaConfig", {
        **FEW, "num_experts": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False}, CAUSAL),
    "RecurrentGemmaForCausalLM": ("RecurrentGemmaConfig", {
        **FEW, "lru_width": 32, "attention_window_size": 4, "block_types": ["recurrent", "attention"]}, CAUSAL),
    "Lfm2ForCausalLM": ("Lfm2Config", {**FEW, "layer_types": ["conv", "full_attention"]}, CAUSAL),
    "RwkvForCausalLM": ("RwkvConfig", {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 99}, UNMASKED),
    "xLSTMForCausalLM": ("xLSTMConfig", {
        "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 4, "vocab_size": 99, "chunk_size": 4,
        "qk_dim_factor": 1.0, "v_dim_factor": 1.0}, {
        "input_ids": IDS[:, :8], "labels": IDS[:, :8], "use_cache": False}),
    "ModernBertDecoderForCausalLM": ("ModernBertDecoderConfig", {**SMALL, "local_attention": 8}, CAUSAL),
    # text: encoders with decoders
    "T5ForConditionalGeneration": ("T5Config", T5, UNMASKED),
    "MT5ForConditionalGeneration": ("MT5Config", T5, UNMASKED),
    "UMT5ForConditionalGeneration": ("UMT5Config", T5, UNMASKED),
    "LongT5ForConditionalGeneration": ("LongT5Config", {**T5, "local_radius": 3}, CAUSAL),
    "SwitchTransformersForConditionalGeneration": ("SwitchTransformersConfig", {
        **T5, "num_experts": 4, "expert_capacity": 8, "router_jitter_noise": 0.0}, CAUSAL),
    "BartForConditionalGeneration": ("BartConfig", PAIR, UNMASKED),
    "MBartForConditionalGeneration": ("MBartConfig", PAIR, UNMASKED),
    "MarianMTModel": ("MarianConfig", PAIR, UNMASKED),
    "PegasusForConditionalGeneration": ("PegasusConfig", PAIR, UNMASKED),
    "PegasusXForConditionalGeneration": ("PegasusXConfig", {
        **PAIR, "block_size": 4, "num_global_tokens": 2}, UNMASKED),
    "BigBirdPegasusForConditionalGeneration": ("BigBirdPegasusConfig", {
        **PAIR, "attention_type": "original_full"}, UNMASKED),
    "BlenderbotForConditionalGeneration": ("BlenderbotConfig", PAIR, UNMASKED),
    "BlenderbotSmallForConditionalGeneration": ("BlenderbotSmallConfig", PAIR, UNMASKED),
    "M2M100ForConditionalGeneration": ("M2M100Config", PAIR, UNMASKED),
    "PLBartForConditionalGeneration": ("PLBartConfig", PAIR, UNMASKED),
    "MvpForConditionalGeneration": ("MvpConfig", PAIR, UNMASKED),
    "LEDForConditionalGeneration": ("LEDConfig", {
        **PAIR, "attention_window": 4, "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64},
        UNMASKED),
    "ProphetNetForConditionalGeneration": ("ProphetNetConfig", {
        "vocab_size": 99, "hidden_size": 32, "encoder_ffn_dim": 64, "num_encoder_layers": 2,
        "num_encoder_attention_heads": 4, "decoder_ffn_dim": 64, "num_decoder_layers": 2,
        "num_decoder_attention_heads": 4, "max_position_embeddings": 64, "ngram": 2, "decoder_start_token_id": 0},
        UNMASKED),
    "FSMTForConditionalGeneration": ("FSMTConfig", {
        **PAIR, "langs": ["a", "b"], "src_vocab_size": 99, "tgt_vocab_size": 99}, {**UNMASKED,
        "decoder_input_ids": IDS}),
    # audio
    "WhisperForConditionalGeneration": ("WhisperConfig", {
        **PAIR, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 64}, {
        "input_features": torch.linspace(-1, 1, 320).reshape(2, 8, 20), "labels": IDS, "use_cache": False}),
    "Speech2TextForConditionalGeneration": ("Speech2TextConfig", {
        **PAIR, "input_feat_per_channel": 8, "input_channels": 1, "conv_channels": 16, "max_source_positions": 40,
        "max_target_positions": 64}, {
        "input_features": torch.linspace(-1, 1, 320).reshape(2, 20, 8), "labels": IDS, "use_cache": False}),
    "MoonshineForConditionalGeneration": ("MoonshineConfig", {
        **SMALL, "encoder_num_hidden_layers": 2, "decoder_num_hidden_layers": 2, "encoder_num_attention_heads": 4,
        "decoder_num_attention_heads": 4, "decoder_start_token_id": 1}, {
        "input_values": torch.sin(torch.arange(2 * 2000.0).reshape(2, 2000) * 0.1), "labels": IDS, "use_cache": False}),
    "Wav2Vec2Model": ("Wav2Vec2Config", SOUND, HEARD),
    "Wav2Vec2ForCTC": ("Wav2Vec2Config", SOUND, {**HEARD, "labels": IDS[:, :5]}),
    "Wav2Vec2ConformerModel": ("Wav2Vec2ConformerConfig", SOUND, HEARD),
    "HubertModel": ("HubertConfig", SOUND, HEARD),
    "WavLMModel": ("WavLMConfig", SOUND, HEARD),
    "UniSpeechModel": ("UniSpeechConfig", {**SOUND, "num_codevector_groups": 2}, HEARD),
    "Data2VecAudioModel": ("Data2VecAudioConfig", {**SOUND, "conv_pos_kernel_size": 3}, HEARD),
    "SEWModel": ("SEWConfig", {**SOUND, "squeeze_factor": 2}, HEARD),
    "ASTModel": ("ASTConfig", {**PATCHES, "num_mel_bins": 16, "max_length": 24, "time_stride": 8,
        "frequency_stride": 8},
        {"input_values": torch.linspace(-1, 1, 2 * 24 * 16).reshape(2, 24, 16)}),
    "EncodecModel": ("EncodecConfig", {
        "num_filters": 4, "hidden_size": 16, "codebook_size": 16, "codebook_dim": 16, "upsampling_ratios": [4, 2],
        "target_bandwidths": [36.0], "num_lstm_layers": 1}, {"input_values": WAVE[:, None]}),
    "DacModel": ("DacConfig", {
        "encoder_hidden_size": 8, "decoder_hidden_size": 16, "downsampling_ratios": [2, 4], "upsampling_ratios": [4, 2],
        "n_codebooks": 2, "codebook_size": 16}, {"input_values": WAVE[:, None]}),
    "UnivNetModel": ("UnivNetConfig", {
        "model_in_channels": 4, "model_hidden_channels": 4, "num_mel_bins": 8, "kernel_predictor_hidden_channels": 4}, {
        "input_features": torch.linspace(-1, 1, 80).reshape(1, 10, 8),
        "noise_sequence": torch.sin(torch.arange(40.0)).reshape(1, 10, 4)}),
    # vision
    "ViTForImageClassification": ("ViTConfig", PATCHES, {**SEEN, "labels": torch.tensor([0, 1])}),
    "DeiTModel": ("DeiTConfig", PATCHES, SEEN),
    "BeitModel": ("BeitConfig", PATCHES, SEEN),
    "Data2VecVisionModel": ("Data2VecVisionConfig", {**PATCHES, "use_relative_position_bias": True}, SEEN),
    "Dinov2Model": ("Dinov2Config", PATCHES, SEEN),
    "Dinov2WithRegistersModel": ("Dinov2WithRegistersConfig", PATCHES, SEEN),
    "DINOv3ViTModel": ("DINOv3ViTConfig", {**PATCHES, "pos_embed_rescale": None}, SEEN),
    "IJepaModel": ("IJepaConfig", PATCHES, SEEN),
    "ViTMSNModel": ("ViTMSNConfig", PATCHES, SEEN),
    "ViTMAEModel": ("ViTMAEConfig", {**PATCHES, "mask_ratio": 0.5}, {
        **SEEN, "noise": torch.sin(torch.arange(32.0)).reshape(2, 16)}),
    "VitDetModel": ("VitDetConfig", {
        **PATCHES, "window_block_indices": [0], "window_size": 2, "use_relative_position_embeddings": True}, SEEN),
    "HieraModel": ("HieraConfig", {
        "embed_dim": 16, "image_size": [32, 32], "depths": [1, 1], "num_heads": [2, 4], "embed_dim_multiplier": 2.0,
        "num_query_pool": 1, "query_stride": [2, 2], "masked_unit_size": [4, 4], "masked_unit_attention": [True,
        False]},
        SEEN),
    "SwinModel": ("SwinConfig", {
        "image_size": 32, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4}, SEEN),
    "Swinv2Model": ("Swinv2Config", {
        "image_size": 32, "embed_dim": 16, "depths": [2, 1], "num_heads": [2, 4], "window_size": 4}, SEEN),
    "Swin2SRModel": ("Swin2SRConfig", {
        "image_size": 32, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4}, SEEN),
    "FocalNetModel": ("FocalNetConfig", {
        "image_size": 32, "embed_dim": 16, "depths": [1, 1], "focal_levels": [2, 2], "focal_windows": [3, 3]}, SEEN),
    "PvtModel": ("PvtConfig", {
        "image_size": 32, "depths": [1, 1, 1, 1], "hidden_sizes": [8, 8, 16, 16], "num_attention_heads": [1, 1, 2, 2]},
        SEEN),
    "SegformerForSemanticSegmentation": ("SegformerConfig", {
        "depths": [1, 1, 1, 1], "hidden_sizes": [8, 8, 16, 16], "num_attention_heads": [1, 1, 2, 2],
        "decoder_hidden_size": 16, "num_labels": 3}, SEEN),
    "CvtModel": ("CvtConfig", {"embed_dim": [16, 32, 32], "depth": [1, 2, 3], "num_heads": [1, 2, 2]}, SEEN),
    "LevitModel": ("LevitConfig", {
        "image_size": 64, "hidden_sizes": [16, 32, 32], "num_attention_heads": [2, 2, 2], "depths": [1, 1, 1],
        "key_dim": [8, 8, 8], "down_ops": [["Subsample", 8, 4, 2, 2, 2], ["Subsample", 8, 4, 2, 2, 2]]}, {
        "pixel_values": torch.linspace(-1, 1, 2 * 3 * 64 * 64).reshape(2, 3, 64, 64)}),
    "PoolFormerModel": ("PoolFormerConfig", {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 8, 16, 16]}, SEEN),
    "ConvNextModel": ("ConvNextConfig", {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 8, 16, 16]}, SEEN),
    "ConvNextV2Model": ("ConvNextV2Config", {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 8, 16, 16]}, SEEN),
    "ResNetModel": ("ResNetConfig", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}, SEEN),
    "RegNetModel": ("RegNetConfig", {
        "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 4}, SEEN),
    "BitModel": ("BitConfig", {
        "embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1], "num_groups": 2}, SEEN),
    "MobileViTModel": ("MobileViTConfig", {
        "image_size": 32, "hidden_sizes": [16, 16, 16], "neck_hidden_sizes": [8, 8, 8, 16, 16, 16, 32],
        "num_attention_heads": 2}, SEEN),
    "SwiftFormerModel": ("SwiftFormerConfig", {"depths": [1, 1, 1, 1], "embed_dims": [8, 8, 16, 16]}, SEEN),
    "DPTModel": ("DPTConfig", {**PATCHES, "is_hybrid": False}, SEEN),
    "GLPNModel": ("GLPNConfig", {
        "depths": [1, 1, 1, 1], "hidden_sizes": [8, 8, 16, 16], "num_attention_heads": [1, 1, 2, 2]}, SEEN),
    "YolosModel": ("YolosConfig", {**PATCHES, "image_size": [32, 32], "num_detection_tokens": 4}, SEEN),
    "VideoMAEModel": ("VideoMAEConfig", {**PATCHES, "num_frames": 4}, VIDEO),
    "TimesformerModel": ("TimesformerConfig", {**PATCHES, "num_frames": 4}, VIDEO),
    "VivitModel": ("VivitConfig", {**PATCHES, "num_frames": 4, "tubelet_size": [2, 8, 8]}, VIDEO),
    # several kinds of inputs
    "CLIPModel": ("CLIPConfig", SEEING, BOTH),
    "SiglipModel": ("SiglipConfig", SEEING, BOTH),
    "ChineseCLIPModel": ("ChineseCLIPConfig", SEEING, BOTH),
    "AltCLIPModel": ("AltCLIPConfig", {"text_config": {**SMALL, "project_dim": 16}, "vision_config": PATCHES,
        "projection_dim": 16}, BOTH),
    "CLIPSegForImageSegmentation": ("CLIPSegConfig", {
        **SEEING, "extract_layers": [0, 1], "reduce_dim": 16, "decoder_num_attention_heads": 2,
        "decoder_intermediate_size": 32}, BOTH),
    "GroupViTModel": ("GroupViTConfig", {
        "text_config": SMALL, "projection_dim": 16, "projection_intermediate_dim": 32, "vision_config": {
            **PATCHES, "depths": [1, 1], "num_group_tokens": [4, 0], "num_output_groups": [4, 2]}}, BOTH),
    "OwlViTModel": ("OwlViTConfig", SEEING, BOTH),
    "BlipModel": ("BlipConfig", SEEING, BOTH),
    "VisualBertModel": ("VisualBertConfig", {**SMALL, "visual_embedding_dim": 8}, {
        **TEXT, "visual_embeds": torch.linspace(-1, 1, 48).reshape(2, 3, 8)}),
    "LxmertModel": ("LxmertConfig", {
        **SMALL, "l_layers": 1, "x_layers": 1, "r_layers": 1, "visual_feat_dim": 8}, {
        **TEXT, "visual_feats": torch.linspace(-1, 1, 48).reshape(2, 3, 8), "visual_pos": torch.ones(2, 3, 4) * 0.5}),
    "FlavaModel": ("FlavaConfig", {
        "text_config": SMALL, "image_config": PATCHES, "multimodal_config": {**PATCHES}, "hidden_size": 32,
        "projection_dim": 16}, BOTH),
    "GitForCausalLM": ("GitConfig", {**SMALL, "vision_config": PATCHES}, BOTH),
    "LayoutLMv3Model": ("LayoutLMv3Config", {
        **SMALL, "input_size": 32, "patch_size": 8, "coordinate_size": 4, "shape_size": 8}, {**BOTH, "bbox": BOXES}),
    "LlavaForConditionalGeneration": ("LlavaConfig", {
        "text_config": {"model_type": "llama", **FEW}, "vision_config": {"model_type": "clip_vision_model", **PATCHES},
        "image_token_index": 3}, {
        "input_ids": PICTURED, **SEEN, "use_cache": False}),
    "PaliGemmaForConditionalGeneration": ("PaliGemmaConfig", {
        "text_config": {"model_type": "gemma", **HEADS}, "projection_dim": 32, "hidden_size": 32,
        "vision_config": {"model_type": "siglip_vision_model", **PATCHES}, "image_token_index": 3}, {
        "input_ids": PICTURED, "token_type_ids": (PICTURED != 3).long(), **SEEN, "use_cache": False}),
    "ClapModel": ("ClapConfig", {
        "text_config": {**SMALL, "projection_dim": 16}, "audio_config": {
            "hidden_size": 64, "spec_size": 64, "patch_embeds_hidden_size": 16, "depths": [1, 1, 1],
            "num_attention_heads": [2, 2, 2], "window_size": 4, "num_mel_bins": 16, "projection_dim": 16},
        "projection_dim": 16}, {**TEXT, "input_features": torch.linspace(-1, 1, 2 * 256 * 16).reshape(2, 1, 256, 16)}),
    # series
    "PatchTSTForPrediction": ("PatchTSTConfig", {
        "num_input_channels": 3, "context_length": 32, "patch_length": 8, "patch_stride": 8, "d_model": 32,
        "ffn_dim": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "prediction_length": 4, "loss": "mse"}, {
        "past_values": SERIES, "future_values": SERIES[:, :4]}),
    "PatchTSMixerForPrediction": ("PatchTSMixerConfig", {
        "num_input_channels": 3, "context_length": 32, "patch_length": 8, "patch_stride": 8, "d_model": 16,
        "num_layers": 2, "prediction_length": 4}, {"past_values": SERIES, "future_values": SERIES[:, :4]}),
    "TimeSeriesTransformerForPrediction": ("TimeSeriesTransformerConfig", FORECASTER, FORECAST),
    "AutoformerForPrediction": ("AutoformerConfig", {**FORECASTER, "moving_average": 5}, FORECAST),
    "InformerForPrediction": ("InformerConfig", {**FORECASTER, "attention_type": "full"}, FORECAST),
    "DecisionTransformerModel": ("DecisionTransformerConfig", {
        "state_dim": 3, "act_dim": 2, "hidden_size": 32, "n_layer": 2, "n_head": 4, "max_ep_len": 20}, {
        "states": SERIES[:, :5], "actions": SERIES[:, :5, :2], "rewards": SERIES[:, :5, :1],
        "returns_to_go": SERIES[:, :5, :1], "timesteps": torch.arange(5)[None].repeat(2, 1),
        "attention_mask": torch.ones(2, 5)}),
}  # fmt: skip
"""By class: its configuration class, arguments of that, and arguments of the model."""

IN_FLOAT64 = {"LevitModel", "MobileViTModel"}
"""Models with batch norms over few elements, which amplify the rounding of float32 beyond any bound."""

SAMPLING = {"DacModel", "GroupViTModel", "PhimoeForCausalLM"}
"""Models that draw random numbers in training without dropout too: they are compared in evaluation alone."""

PRECISE = [
    "BertForMaskedLM",
    "DebertaV2Model",
    "ModernBertModel",
    "GPT2LMHeadModel",
    "LlamaForCausalLM",
    "Gemma2ForCausalLM",
    "Mamba2ForCausalLM",
    "T5ForConditionalGeneration",
    "WhisperForConditionalGeneration",
    "Wav2Vec2Model",
    "ViTForImageClassification",
    "SwinModel",
    "ConvNextModel",
    "CLIPModel",
]
"""Models whose errors in float32 are compared with those of torch."""


WITHOUT_TOKENS = {"xLSTMForCausalLM"}
"""Models whose ``generate`` raises in torch too, at these sizes."""


def generating(name: str) -> bool:
    """Whether a model is a causal language model with a cache."""
    causal = name.endswith(("CausalLM", "LMHeadModel")) and "use_cache" in TRANSFORMERS[name][2]
    return causal and name not in WITHOUT_TOKENS

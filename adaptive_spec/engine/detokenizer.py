"""Detokenizer: output tokens to text as they come, whole characters only, watched for stop strings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from adaptive_spec.engine.sampling_params import SamplingParams

REPLACEMENT = "\ufffd"

# The last tokens of the prompt are decoded along with the output: a tokenizer of SentencePiece's kind drops
# the space before the first token that it sees.
CONTEXT_TOKENS = 6


class Decoder(Protocol):
    """What is asked of a tokenizer.

    Decoding must be local: text that ends with a whole character stays as it is when tokens follow (so
    ``clean_up_tokenization_spaces`` has to be off).
    """

    def decode(self, token_ids: Sequence[int], /, *, skip_special_tokens: bool) -> str:
        """Return the text of the tokens, with U+FFFD for bytes that are not UTF-8."""
        ...


class Detokenizer:
    """One text in the making.

    Tokens of a byte-level vocabulary may end inside a character: its text is held back until it is whole.
    Text that may be the beginning of a stop string is held back too, so that what was shown is never taken
    back. Only the tokens since the last whole character are decoded anew (the prefix and read offsets of
    text-generation-inference and vLLM), so the cost of a token does not grow with the text.

    Parameters
    ----------
    tokenizer : Decoder
    params : SamplingParams
        Its stop strings, `min_tokens`, `include_stop_str_in_output`, `skip_special_tokens`, `detokenize`.
    prompt_token_ids : sequence of int
        The prompt, of which the last few give the first token its context. Empty: the text is what the
        tokenizer makes of the output alone.
    """

    def __init__(self, tokenizer: Decoder, params: SamplingParams, prompt_token_ids: Sequence[int] = ()) -> None:
        self._decoder = tokenizer
        self._skip_special = params.skip_special_tokens
        self._stops = tuple(params.stop)
        self._longest = max(map(len, self._stops), default=0)
        self._keep_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._active = params.detokenize
        self._window = list(prompt_token_ids[-CONTEXT_TOKENS:])  # tokens that may still change the text's end
        self._read = len(self._window)  # leading ones that are there for their context alone
        self._context = self._decode(self._window) if self._window else ""
        # Characters of the window's text that are out; a prompt may end inside a character.
        self._emitted = len(self._context.rstrip(REPLACEMENT))
        self._pending = ""  # text of an incomplete character, should nothing follow
        self._text = ""
        self._shown = 0
        self._num_tokens = 0
        self._ended = False

    @property
    def text(self) -> str:
        """The text so far that can no longer change: a prefix of the final text."""
        return self._text if self._shown == len(self._text) else self._text[: self._shown]

    def push(self, token: int, /) -> str | None:
        """Take the next output token.

        Returns
        -------
        str or None
            The stop string that it completes. The text then ends there, and no token may follow.

        Raises
        ------
        RuntimeError
            If the text has ended.
        """
        if self._ended:
            raise RuntimeError(f"the text has ended; token {token} can't follow")
        self._num_tokens += 1
        if not self._active:
            return None
        old = len(self._text)
        self._append(token)
        stop = self._find_stop(old) if self._num_tokens > self._min_tokens else None
        if stop is not None:
            self._end()
        elif not self._stops or self._keep_stop:
            self._shown = len(self._text)
        else:
            self._shown = max(self._shown, len(self._text) - self._possible_stop())
        return stop

    def extend(self, tokens: Iterable[int]) -> tuple[int, str | None]:
        """Take the tokens that a step accepted, up to the one that completes a stop string.

        Returns
        -------
        kept : int
            Tokens that belong to the output, that last one included.
        stop : str or None
            The stop string.
        """
        kept = 0
        for token in tokens:
            kept += 1
            stop = self.push(token)
            if stop is not None:
                return kept, stop
        return kept, None

    def finish(self) -> None:
        """End the text where it is: what was held back is shown. Does nothing if it has ended."""
        if not self._ended:
            self._text += self._pending
            self._end()

    def _end(self) -> None:
        self._ended = True
        self._shown = len(self._text)

    def _decode(self, tokens: Sequence[int]) -> str:
        return self._decoder.decode(tokens, skip_special_tokens=self._skip_special)

    def _append(self, token: int) -> None:
        """Add the text that the token completes."""
        self._window.append(token)
        text = self._decode(self._window)
        begin = max(self._emitted, len(self._context)) if text.startswith(self._context) else self._emitted
        whole = len(text.rstrip(REPLACEMENT))  # what follows may be the beginning of a character
        if whole > begin:
            self._text += text[begin:whole]
            begin = self._emitted = whole
            self._context = ""
        elif whole == len(text) and self._read:
            self._window.pop()  # a special token: it has no text and changes none
            return
        self._pending = text[begin:]
        if text and not self._pending:
            del self._window[: self._read]
            self._read = len(self._window)
            self._emitted = len(self._decode(self._window))
            self._context = ""

    def _find_stop(self, old: int) -> str | None:
        """Find the stop string that ends first in the text since `old`, and cut the text there."""
        first: tuple[int, int, str] | None = None
        for stop in self._stops:
            begin = self._text.find(stop, max(0, old - len(stop) + 1))
            if begin >= 0:  # of those that end together, the longest
                found = (begin + len(stop), begin, stop)
                first = found if first is None else min(first, found)
        if first is None:
            return None
        end, begin, stop = first
        self._text = self._text[: end if self._keep_stop else begin]
        return stop

    def _possible_stop(self) -> int:
        """Return the length of the longest end of the text with which a stop string begins."""
        for length in range(min(self._longest - 1, len(self._text)), 0, -1):
            tail = self._text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0

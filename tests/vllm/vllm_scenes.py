"""What the engines of these tests are given to do, and how they are set."""

from __future__ import annotations

PATIENT = "fallback: {time_budget_ms: 60000}\n"  # tuning: on a busy machine no decision counts as too slow
PROMPTS = [
    "hello world, hello world, hello world, hel",
    "the quick brown fox. the quick brown dog. the qui",
    "aaaaaaabbbbbbaaaaaa",
    "x" * 50,
    "one two three four five six seven eight nine ten, and then on to eleven, twelve and thirteen",
    "hello world, hello world, hello world, hel",
    "to be or not to be",
]
TEXTS = ["policy", "mixed", "changing", "deepest", "off", "again", "raising", "hooks failing"]
SCENES = [*TEXTS, "regex", "json", "aborts", "wrong override"]
TIGHT = {"num_gpu_blocks_override": 11, "max_num_batched_tokens": 48}
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}

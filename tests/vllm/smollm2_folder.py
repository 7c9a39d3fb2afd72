"""Writes SmolLM2-135M as a Hugging Face folder in float32, and prompts as tokens.

python smollm2_folder.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from adaptive_spec.experiments.smollm2_folder import chat_tokens, write

PROMPTS = [
    "Repeat this list twice: red, green, blue, yellow, orange, red, green, blue, yellow, orange.",
    "Write one sentence about the sea.",
    "List the numbers from one to twenty in words.",
    'Copy this JSON: {"name": "Ada", "born": 1815, "languages": ["English", "French"]}',
]


def main(folder: Path) -> None:
    tokenizer = write(folder)
    (folder / "prompts.json").write_text(json.dumps(chat_tokens(tokenizer, PROMPTS)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

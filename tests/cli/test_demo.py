"""The demo, and the picture of it, on a tiny model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from adaptive_spec.experiments import demo, demo_picture

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def long_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, with room for the demo's prompts of one token a letter."""
    folder = tmp_path_factory.mktemp("demo") / "tiny"
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = 4096
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_the_demo_and_its_picture(long_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"max_tokens": 12, "rounds": 1, "max_seconds": 1, "model": str(long_model), "dtype": "float32"}
    demo.main(**settings, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert [setting["concurrency"] for setting in document["settings"]] == [1, 12]
    for setting in document["settings"]:
        assert [row["policy"] for row in setting["policies"]] == list(demo.POLICIES)
        assert len(setting["strips"]) == len(demo.demo_prompts())
        for strip, prompt in zip(setting["strips"], demo.demo_prompts(), strict=True):
            assert strip["prompt"] == prompt.text
            # 12 tokens: one from the prefill, then each step's accepted drafts and one more, the last step's cut.
            steps, accepted = len(strip["depth"]), sum(strip["accepted"])
            assert steps + accepted - strip["accepted"][-1] <= 11 <= steps + accepted
            assert all(0 <= a <= d <= 8 for d, a in zip(strip["depth"], strip["accepted"], strict=True))

    pytest.importorskip("matplotlib")
    demo_picture.draw(document, tmp_path / "new" / "demo.svg")
    first = (tmp_path / "new" / "demo.svg").read_bytes()
    assert first.startswith(b"<?xml")
    demo_picture.draw(document, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_bytes() == first, "the same result gives the same file"


def test_the_demo_prints_every_policy_and_every_strip(long_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo.main(max_tokens=8, rounds=1, max_seconds=1, model=str(long_model), dtype="float32", as_json=False)
    out = capsys.readouterr().out
    for policy in demo.POLICIES:
        assert policy in out
    assert out.count("\nsummary") == 4  # two prompts, one at a time and all at once
    assert "the depth of every sequence, step by step" in out
    assert "times the speed of no speculation" in out


def test_a_missing_model_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import typer

    with pytest.raises(typer.Exit) as leave:
        demo.main(model=str(tmp_path / "missing"))
    assert leave.value.exit_code == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"demo: model {tmp_path}")
    assert err.count("\n") == 1

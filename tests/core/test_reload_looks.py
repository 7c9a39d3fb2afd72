"""When an edited tuning file counts: at the first look if it rests, at the second if it may still be written."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest
from test_reload import FIXED_2, FIXED_3, Deployment


def written(path: Path, text: str, seconds_ago: float) -> None:
    path.write_text(text)
    then = time.time() - seconds_ago
    os.utime(path, (then, then))


@pytest.mark.parametrize(
    ("every", "seconds_ago", "looks"),
    [
        (1.0, 0.0, 2),
        (1.0, 1.5, 1),
        (1.0, 1e6, 1),
        (60.0, 30.0, 2),
        (60.0, 90.0, 1),
        (1.0, -0.5, 2),  # by the clock of a server of files that runs ahead
        (1.0, -1e6, 2),
    ],
)
@pytest.mark.parametrize("valid", [True, False])
def test_a_file_that_rests_counts_at_the_first_look_and_a_fresh_one_at_the_second(
    tmp_path: Path, every: float, seconds_ago: float, looks: int, valid: bool
) -> None:
    text = FIXED_2 + f"reload: {{check_every_seconds: {every}}}\n"
    deployment = Deployment(tmp_path / "t.yaml", text)
    written(deployment.path, text, 1e5)
    reload = deployment.reload
    for look in range(8):
        reload.tick(look * every)
    written(deployment.path, text.replace("depth: 2", "depth: 3" if valid else "dpeth: 3"), seconds_ago)
    counted = []
    for look in range(8, 12):
        reload.tick(look * every)
        counted.append((reload.generation - 1, reload.rejections))
    after = (1, 0) if valid else (0, 1)
    assert counted == [(0, 0)] * (looks - 1) + [after] * (5 - looks)


class SlowlyWritten(type(Path())):
    """A path at which an editor is just beginning to write when it is read."""

    rest: list[str]

    def read_bytes(self) -> bytes:
        if SlowlyWritten.rest:
            self.write_text(SlowlyWritten.rest.pop(0))
        return super().read_bytes()


@pytest.mark.parametrize("begun", ["", FIXED_3[:30], "max_depth: 4\n"])
def test_a_file_that_rested_until_it_is_read_is_no_mistake(
    tmp_path: Path, begun: str, caplog: pytest.LogCaptureFixture
) -> None:
    deployment = Deployment(tmp_path / "t.yaml")
    deployment.settle()
    written(deployment.path, FIXED_2 + "# edited a while ago\n", 1e5)
    deployment.reload.path = SlowlyWritten(deployment.path)
    SlowlyWritten.rest = [begun, FIXED_3]
    assert deployment.settle(1) == []
    (tuning,) = deployment.settle()
    assert tuning.policy.params == {"depth": 3}
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]

"""`generate --metrics-port`: Prometheus metrics while a command runs."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path

import pytest

from adaptive_spec.cli import main
from adaptive_spec.cli.engine_options import with_metrics_port
from adaptive_spec.config import TuningConfig

pytest.importorskip("torch")
pytest.importorskip("prometheus_client")

ENGINE = ["--dtype", "float32", "--num-kv-blocks", "256", "--max-tokens", "20", "--json"]


def test_the_port_is_served_until_the_command_ends(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from adaptive_spec.metrics_server import MetricsServer

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    seen = []
    close = MetricsServer.close

    def scrape_and_close(server: MetricsServer) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
            seen.append(answer.read().decode())
        close(server)

    monkeypatch.setattr(MetricsServer, "close", scrape_and_close)
    code = main(["generate", "a bad cab", "--model", str(tiny_model), *ENGINE, "--metrics-port", str(port)])
    assert code == 0, capsys.readouterr().err
    assert len(seen) == 1
    assert f'adaptive_spec:requests_total{{adapted="true",engine="0",model_name="{tiny_model}"}} 1.0' in seen[0]
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10)


def test_a_taken_port_is_told_in_one_line(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code = main(["generate", "a bad cab", "--model", str(tiny_model), *ENGINE, "--metrics-port", str(port)])
    error = capsys.readouterr().err
    assert code == 1
    assert f"metrics.port: {port} can't be opened" in error
    assert "Traceback" not in error


def test_the_option_leaves_the_file_s_other_settings() -> None:
    tuning = TuningConfig.model_validate({"metrics": {"enabled": False, "host": "::1"}, "max_depth": 3})
    assert with_metrics_port(tuning, None) is tuning
    changed = with_metrics_port(tuning, 9100)
    assert changed.metrics.model_dump() == {"enabled": True, "port": 9100, "host": "::1"}
    assert changed.max_depth == 3

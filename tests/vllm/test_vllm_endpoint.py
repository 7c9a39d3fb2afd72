"""vLLM's own ``/metrics`` gives out what an engine's process has written to the folder."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from adaptive_spec import metrics_folder

pytest.importorskip("vllm.config")
router = pytest.importorskip("vllm.entrypoints.serve.instrumentator.metrics")
testclient = pytest.importorskip("fastapi.testclient")

ENGINE = """
from adaptive_spec.config import TuningConfig
from adaptive_spec.deployment import make_controller
from adaptive_spec.metrics_folder import folder_offered
from adaptive_spec.upkeep import Upkeep
tuning = TuningConfig()
controller = make_controller(tuning, cost=None)
controller.add("a")
upkeep = Upkeep(controller, tuning, model_name="served", rank=1, folder=folder_offered())
upkeep.tick(0.0)
"""
ACCEPT = {  # what Prometheus 2 asks for, and a browser
    "prometheus": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
    "browser": "*/*",
}


@pytest.mark.parametrize("accept", ACCEPT.values(), ids=ACCEPT)
@pytest.mark.parametrize("multiprocess", [False, True])
def test_vllm_s_endpoint_gives_out_our_metrics(
    accept: str, multiprocess: bool, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fastapi
    import prometheus_client

    monkeypatch.setattr(metrics_folder, "_folder", None)
    monkeypatch.delenv(metrics_folder.VARIABLE, raising=False)
    monkeypatch.delenv(metrics_folder.MULTIPROCESS, raising=False)
    if multiprocess:
        monkeypatch.setenv(metrics_folder.MULTIPROCESS, str(tmp_path))
    before = set(prometheus_client.REGISTRY._collector_to_names)
    metrics_folder.offer_folder(prometheus_client.REGISTRY)
    try:
        app = fastapi.FastAPI()
        router.attach_router(app)
        subprocess.run([sys.executable, "-c", ENGINE], check=True, env=dict(os.environ))
        text = testclient.TestClient(app).get("/metrics", headers={"Accept": accept}).text
    finally:
        monkeypatch.delenv(metrics_folder.VARIABLE, raising=False)
        for collector in set(prometheus_client.REGISTRY._collector_to_names) - before:
            prometheus_client.REGISTRY.unregister(collector)
    assert 'adaptive_spec:sequences{engine="1",model_name="served"} 1.0' in text
    assert 'adaptive_spec:depth_bucket{engine="1",le="+Inf",model_name="served"} 0.0' in text

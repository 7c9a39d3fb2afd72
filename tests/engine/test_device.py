"""A device that is unknown or absent is refused in one line that says what there is."""

from __future__ import annotations

import pytest
import torch
from tiny_llama import write_tiny_llama

from adaptive_spec.engine import device as device_module
from adaptive_spec.engine.device import DeviceError, find_device
from adaptive_spec.engine.llm import LLM


def test_the_cpu_is_always_there():
    assert find_device("cpu") == find_device("cpu:0") == torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tpu", "device 'tpu' is unknown; known are cpu, cuda, and cuda:N"),
        ("", "device '' is unknown"),
        ("meta", "device 'meta' is not supported; known are cpu, cuda"),
        ("cpu:1", "device 'cpu:1': there is one cpu"),
    ],
)
def test_unknown_names(name, message):
    with pytest.raises(DeviceError, match=message) as caught:
        find_device(name)
    assert "\n" not in str(caught.value)


class OneGpu:
    @staticmethod
    def is_available():
        return True

    @staticmethod
    def device_count():
        return 1

    @staticmethod
    def current_device():
        return 0


def test_gpus_are_counted(monkeypatch):
    monkeypatch.setattr(device_module.torch, "cuda", OneGpu)
    assert find_device("cuda") == find_device("cuda:0") == torch.device("cuda", 0)
    with pytest.raises(DeviceError, match="device 'cuda:1' is not there: GPUs are numbered 0 to 0"):
        find_device("cuda:1")


def test_another_gpu_than_the_current_one_is_refused(monkeypatch):
    class TwoGpus(OneGpu):
        @staticmethod
        def device_count():
            return 2

    monkeypatch.setattr(device_module.torch, "cuda", TwoGpus)
    assert find_device("cuda:0") == torch.device("cuda", 0)
    with pytest.raises(DeviceError, match=r"'cuda:1' is not the current one, cuda:0; .* CUDA_VISIBLE_DEVICES=1"):
        find_device("cuda:1")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_an_absent_gpu_is_said_before_anything_is_loaded(tmp_path):
    folder = write_tiny_llama(tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(DeviceError, match=r"device 'cuda' is not there: .*; use cpu"):
        LLM(folder, device="cuda")

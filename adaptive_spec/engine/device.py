"""Which device a name means, and whether it is there."""

from __future__ import annotations

import torch


class DeviceError(ValueError):
    """A device that is unknown or absent; one line that says what there is."""


def find_device(name: str) -> torch.device:
    """Return the device that a name means: ``cpu``, ``cuda`` or ``cuda:0``.

    ``cuda`` is the one that torch calls current, by its number: two names of one device would compare unequal.

    Raises
    ------
    DeviceError
        If the name is unknown, or the machine has no such device, or it is not the current one: kernels and graphs
        run on that, whatever their tensors lie on.
    """
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise DeviceError(f"device {name!r} is unknown; known are cpu, cuda, and cuda:N for one of several") from None
    if device.type == "cpu":
        if device.index not in (None, 0):
            raise DeviceError(f"device {name!r}: there is one cpu; write cpu")
        return torch.device("cpu")
    if device.type != "cuda":
        raise DeviceError(f"device {name!r} is not supported; known are cpu, cuda, and cuda:N for one of several")
    if not torch.cuda.is_available():
        why = "this torch was built without CUDA" if torch.version.cuda is None else "torch finds no GPU"
        if torch.version.hip is not None:
            why = "torch finds no GPU"
        raise DeviceError(f"device {name!r} is not there: {why}; use cpu")
    count, current = torch.cuda.device_count(), torch.cuda.current_device()
    index = current if device.index is None else device.index
    if index >= count:
        raise DeviceError(f"device {name!r} is not there: GPUs are numbered 0 to {count - 1}")
    if index != current:
        raise DeviceError(
            f"device {name!r} is not the current one, cuda:{current}; choose it for the whole process, by "
            f"torch.cuda.set_device({index}) or as cuda with CUDA_VISIBLE_DEVICES={index}"
        )
    return torch.device("cuda", index)

"""Which device this machine trains on, and what it means when that device's memory does not do.

Rule: whoever names a device gets that device or one clear error, and nobody trains on the CPU without being told. PyTorch says
"out of memory" in a different way for each kind of device; only this file knows them. Neighbours: `trainer` trains there,
`daemon` says to the coordinator what it is, `shoal doctor` asks before anybody joins.
"""

from __future__ import annotations

import gc

import torch

from shoal.peer.attach import TrainerError

_OUT_OF_MEMORY = ("out of memory", "ALLOC_FAILED", "DefaultCPUAllocator: can't allocate")


def device_named(name: str) -> torch.device:
    """The device behind "auto", "cpu", "cuda", "cuda:1" or "mps". Uses none of its memory. Raises TrainerError when it is not
    there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise TrainerError(f"there is no device {name!r}", "use --device auto, cpu, cuda or mps") from error
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(device.type, False):
        reason = f"--device {name}: this machine, or its PyTorch {torch.__version__}, has no {device.type}"
        raise TrainerError(reason, "use --device cpu or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise TrainerError(f"--device {name}: there are {torch.cuda.device_count()} CUDA devices", "count from 0")
    return device


def choose_device(name: str) -> tuple[torch.device, str]:
    """The device, and what the volunteer should know when it was chosen for them. Raises TrainerError like `device_named`."""
    device = device_named(name)
    if name != "auto":
        return device, ""
    if device.type == "cuda":
        return device, f"training on {torch.cuda.get_device_name()}"
    hint = "; --device mps tries this machine's GPU" if torch.backends.mps.is_available() else ""
    return device, f"no CUDA device here: training on the CPU{hint}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that the device's memory did not do. PyTorch has a class for it, its allocator's own; another
    program on the same card, cuBLAS, cuDNN, MPS and the CPU have words. Whoever is taken for it wrongly loses a round."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(words in text for words in _OUT_OF_MEMORY)


def free_memory(device: torch.device) -> None:
    """Give back what nobody uses any more, so that another program, or a smaller try, can have it."""
    gc.collect()  # an exception's frames hold the tensors of the step that failed
    match device.type:
        case "cuda":
            torch.cuda.empty_cache()
        case "mps":
            torch.mps.empty_cache()

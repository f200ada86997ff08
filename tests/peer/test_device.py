"""Devices by name, and the ways in which PyTorch says that memory ran out."""

from __future__ import annotations

import pytest
import torch

from shoal.peer.attach import TrainerError
from shoal.peer.device import choose_device, device_named, is_out_of_memory


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Toy GPU")


@pytest.mark.usefixtures("no_gpu")
def test_a_device_that_is_not_there_is_one_clear_line() -> None:
    for name in ("cuda", "cuda:1", "mps"):
        kind = name.partition(":")[0]
        with pytest.raises(TrainerError, match=f"^--device {name}: this machine, .* has no {kind} — use --device cpu or auto$"):
            device_named(name)
    with pytest.raises(TrainerError, match="there is no device 'quantum' — use --device"):
        device_named("quantum")


@pytest.mark.usefixtures("no_gpu")
def test_auto_without_a_gpu_is_the_cpu_and_says_so() -> None:
    assert choose_device("auto") == (torch.device("cpu"), "no CUDA device here: training on the CPU")
    assert choose_device("cpu") == (torch.device("cpu"), "")


@pytest.mark.usefixtures("two_gpus")
def test_auto_takes_the_gpu_and_names_it() -> None:
    assert choose_device("auto") == (torch.device("cuda"), "training on Toy GPU")
    assert device_named("cuda:1") == torch.device("cuda:1")
    with pytest.raises(TrainerError, match="there are 2 CUDA devices — count from 0"):
        device_named("cuda:2")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"), True),
        (MemoryError(), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 17.9 GB)"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("HIP out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (ValueError("MPS backend out of memory"), False),
    ],
)
def test_out_of_memory_is_recognised_on_each_kind_of_device(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_what_the_cpu_says_when_memory_runs_out_is_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    assert is_out_of_memory(caught.value)

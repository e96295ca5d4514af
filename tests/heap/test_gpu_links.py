"""What is asked of the GPU's driver, and what follows from the answers. The driver is a stand-in: *not measured*."""

import warnings
from types import SimpleNamespace

import pytest
import torch

from nanokv.errors import HeapUnavailable
from nanokv.heap import gpu_driver
from nanokv.heap.gpu_driver import FineGrainedMemory, has_native_atomics, is_fine_grained
from nanokv.heap.gpu_peer_access import check_links, check_pairs
from nanokv.tools.doctor import peer_atomics
from tests.support.gpu_driver_standin import Driver

GPUS = [torch.device("cuda", i) for i in range(3)]
BOTH_WAYS = {(0, 1), (1, 0)}
MEMORY = torch.zeros(64, dtype=torch.uint8)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> "Machine":
    return Machine(monkeypatch)


class Machine:
    """A machine of three GPUs with peer access."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(GPUS))
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: SimpleNamespace(uuid=f"gpu {i}"))

    def has(self, driver: Driver, *, amd: bool = False) -> Driver:
        self._patch.setattr(gpu_driver, "gpu_library", lambda name: driver)
        self._patch.setattr(torch.version, "hip", "7.0" if amd else None)
        return driver


def test_atomics_are_asked_for_in_both_directions(machine: Machine) -> None:
    machine.has(Driver(atomics={(0, 1)}))
    assert has_native_atomics(GPUS[0], GPUS[1])
    assert not has_native_atomics(GPUS[1], GPUS[0])
    with pytest.raises(HeapUnavailable, match="local: the link from cuda:1 to cuda:0 has no native atomics"):
        check_pairs("local", GPUS[:2])
    machine.has(Driver(atomics=BOTH_WAYS))
    check_pairs("local", [*GPUS[:2], GPUS[0], torch.device("cpu")])
    check_pairs("local", [GPUS[2], GPUS[2]])  # one GPU: no link


def test_no_peer_access_is_said_first(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.has(Driver())
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: False)
    with pytest.raises(HeapUnavailable, match="cuda:0 cannot access the memory of cuda:1"):
        check_pairs("local", GPUS[:2])


def test_a_driver_that_does_not_answer_is_no_yes(machine: Machine) -> None:
    machine.has(Driver(error=100))
    with pytest.raises(HeapUnavailable, match="cannot be told: cuInit gave error 100"):
        check_pairs("local", GPUS[:2])


def test_ranks_of_processes_ask_for_the_gpus_of_all(machine: Machine) -> None:
    machine.has(Driver(atomics=BOTH_WAYS))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_links("rank 0", GPUS[0], ["gpu 0", "gpu 1"], MEMORY)
        check_links("rank 0", GPUS[0], ["gpu 9", "gpu 9"], MEMORY)  # all on one
    with pytest.raises(HeapUnavailable, match="rank 0: the link from cuda:0 to cuda:2 has no native atomics"):
        check_links("rank 0", GPUS[0], ["gpu 0", "gpu 1", "gpu 2"], MEMORY)


def test_a_gpu_that_this_process_cannot_see_is_named(machine: Machine) -> None:
    machine.has(Driver(atomics=BOTH_WAYS))
    with pytest.warns(RuntimeWarning, match=r"\['gpu 7'\] have native atomics cannot be told: CUDA_VISIBLE_DEVICES"):
        check_links("rank 0", GPUS[0], ["gpu 0", "gpu 7"], MEMORY)


@pytest.mark.parametrize(("driver", "why"), [(Driver(mode=1), "is coarse"), (Driver(error=1), "may be coarse")])
def test_coarse_grained_memory_between_amd_gpus_warns(machine: Machine, driver: Driver, why: str) -> None:
    machine.has(driver, amd=True)
    with pytest.warns(RuntimeWarning, match=f"rank 0: the memory {why}-grained"):
        check_links("rank 0", GPUS[0], ["gpu 0", "gpu 1"], MEMORY)


def test_fine_grained_memory_between_amd_gpus_does_not(machine: Machine) -> None:
    machine.has(Driver(mode=0), amd=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_links("rank 0", GPUS[0], ["gpu 0", "gpu 1"], MEMORY)
        check_pairs("local", GPUS)


def test_fine_grained_memory_is_asked_for_checked_and_freed(machine: Machine) -> None:
    driver = machine.has(Driver(), amd=True)
    memory = FineGrainedMemory(4096)
    assert (list(driver.memory), driver.flags) == ([memory.address], [1])
    assert is_fine_grained(memory.address, 4096)
    del memory
    assert not driver.memory
    FineGrainedMemory(4096)  # a driver that tells nothing about it
    driver.mode = 1
    with pytest.raises(HeapUnavailable, match="coarse-grained"):
        FineGrainedMemory(4096)
    assert not driver.memory


def test_doctor_shows_whether_atomics_work(machine: Machine) -> None:
    machine.has(Driver(atomics={(0, 1)}))
    row = peer_atomics(GPUS[:2])
    assert row.state == "warn" and "cuda:1 to cuda:0 has no native atomics" in row.detail
    machine.has(Driver(atomics=BOTH_WAYS))
    assert peer_atomics(GPUS[:2]).state == "ok"
    machine.has(Driver(), amd=True)
    assert "fine-grained" in peer_atomics(GPUS[:2]).detail


def test_a_library_that_is_not_there_is_an_answer() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(RuntimeError, match="libcuda"):
        has_native_atomics(GPUS[0], GPUS[1])

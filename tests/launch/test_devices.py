"""How workers share cores and accelerators: none is used twice."""

from __future__ import annotations

import pytest

from covey.errors import UsageError
from covey.launch.devices import Accelerators, find_accelerators, make_slots, visible


def test_no_core_is_used_twice() -> None:
    slots = make_slots("cpu", 1, cores=[0, 1, 4, 5], most=10)
    assert [slot.cores for slot in slots] == [(0,), (1,), (4,), (5,)]
    assert [slot.cores for slot in make_slots("cpu", 2, cores=[0, 1, 4, 5], most=10)] == [(0, 1), (4, 5)]
    assert len(make_slots("cpu", 1, cores=[0, 1, 4, 5], most=3)) == 3
    assert len(make_slots("cpu", 1, cores=[0, 1, 4, 5], most=10, workers=2)) == 2
    assert len(make_slots("cpu", 1, cores=[0, 1], most=0)) == 1


def test_workers_that_leave_cores_free_are_not_bound() -> None:
    """Otherwise, parallel commands with one experiment each would all use the first core."""
    cores = [0, 1, 4, 5, 6]
    assert [slot.cores for slot in make_slots("cpu", 1, cores=cores, most=1)] == [tuple(cores)]
    assert [slot.cores for slot in make_slots("cpu", 1, cores=cores, most=10, workers=2)] == [tuple(cores)] * 2
    assert [slot.cores for slot in make_slots("cpu", 2, cores=cores, most=10)] == [tuple(cores)] * 2


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match=r"experiment.devices=3, but this machine has 2 cores"):
        make_slots("cpu", 3, cores=[0, 1], most=1)
    with pytest.raises(UsageError, match=r"workers=2, but 2 cores have room for 1 of experiment.devices=2"):
        make_slots("cpu", 2, cores=[0, 1], most=4, workers=2)


def test_each_gpu_has_a_worker_and_a_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    two = Accelerators(kind="gpu", number=2)
    slots = make_slots("auto", 1, cores=list(range(8)), accelerators=two, most=10)
    assert [slot.cores for slot in slots] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [slot.environment for slot in slots] == [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}]
    [both] = make_slots("auto", 2, cores=list(range(8)), accelerators=two, most=10)
    assert both.environment == {"CUDA_VISIBLE_DEVICES": "0,1"} and len(both.cores) == 8
    # With more GPUs than cores, workers must share cores.
    assert [slot.cores for slot in make_slots("auto", 1, cores=[7], accelerators=two, most=10)] == [(7,), (7,)]


def test_gpus_keep_the_numbers_that_the_user_made_visible() -> None:
    assert visible("gpu", [1], {"CUDA_VISIBLE_DEVICES": "2,5"}) == {"CUDA_VISIBLE_DEVICES": "5"}
    assert visible("rocm", [0, 1], {}) == {"ROCR_VISIBLE_DEVICES": "0,1"}
    assert visible("tpu", [0], {}) == {}
    assert len(make_slots("tpu", 1, cores=[0, 1], accelerators=Accelerators(kind="tpu", number=4), most=9)) == 1


def test_without_a_plugin_there_is_only_the_cpu() -> None:
    assert find_accelerators("auto") is None and find_accelerators("cpu") is None
    with pytest.raises(UsageError, match=r"experiment.platform=gpu is not available on this machine: JAX finds cpu"):
        find_accelerators("gpu")

import dataclasses
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from covey.errors import CoveyError
from covey.experiment.recording import checkpoint
from covey.experiment.recording.checkpoint import Checkpoints, Restored, host_copy
from covey.experiment.recording.lease import LeaseLost
from covey.types import pytree


@pytree
class State:
    params: dict[str, Any]
    key: jax.Array
    count: jax.Array


class Pair(NamedTuple):
    first: jax.Array
    second: object


def make_tree(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "learner": State(
            params={"actor": {"kernel": jnp.asarray(rng.normal(size=(7, 5)), jnp.float32), "none": None}},
            key=jax.random.key(seed),
            count=jnp.int32(seed),
        ),
        "actor": [
            jax.random.split(jax.random.key(seed), (3, 2)),
            Pair(jnp.asarray(rng.normal(size=9), jnp.bfloat16), (jnp.zeros((0, 4)), jnp.array([True, False, True]))),
            {"integer": 7 + seed, "float": 0.1, "flag": True, "scalar": np.float64(math.pi), "empty": ()},
            np.array([-0.0, math.nan, math.inf, 5e-324]),
            rng.integers(0, 255, 1 << 20, dtype=np.uint8),  # large enough to travel alone
            np.asfortranarray(rng.normal(size=(4, 6))),
        ],
        "best": {"agents": {"layer_0": jnp.ones((2, 3)), "layer_1": jnp.arange(4)}},
        "nothing": {},
    }


def assert_same_bits(one: Any, other: Any) -> None:
    structures: list[Any] = [jax.tree.structure(tree) for tree in (one, other)]
    assert structures[0] == structures[1]
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        if isinstance(left, jax.Array) and jnp.issubdtype(left.dtype, jax.dtypes.prng_key):
            assert left.dtype == right.dtype
            left, right = jax.random.key_data(left), jax.random.key_data(right)
        left, right = np.asarray(left), np.asarray(right)
        assert (left.shape, left.dtype) == (right.shape, right.dtype)
        assert left.tobytes() == right.tobytes()


def restore(checkpoints: Checkpoints, template: Any) -> Restored:
    restored = checkpoints.restore(template)
    assert restored is not None
    return restored


def save(checkpoints: Checkpoints, iteration: int, **meta: Any) -> None:
    checkpoints.save(iteration, host_copy(make_tree(iteration)), meta)
    checkpoints.wait()


def test_bits_survive(tmp_path: Path) -> None:
    tree = make_tree()
    checkpoints = Checkpoints(tmp_path)
    meta = {"offset": 12, "best_return": -math.inf, "third": 1 / 3, "count": np.int64(4)}
    checkpoints.save(5, host_copy(tree), meta)
    checkpoints.wait()
    restored = Checkpoints(tmp_path).restore(tree)
    assert restored is not None
    assert restored.iteration == 5
    assert restored.meta == meta
    assert_same_bits(tree, restored.tree)
    assert restored.tree["actor"][2]["integer"] == 7 and type(restored.tree["actor"][2]["integer"]) is int
    assert type(restored.tree["actor"][2]["flag"]) is bool


def test_shapes_are_enough_of_a_template(tmp_path: Path) -> None:
    tree = {"learner": make_tree()["learner"]}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(0, tree, {})  # keys that are still on the device will do as well
    checkpoints.wait()
    assert_same_bits(tree, restore(checkpoints, jax.eval_shape(lambda: tree)).tree)


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_key_implementations(tmp_path: Path, implementation: str) -> None:
    tree = {"key": jax.random.key(1, impl=implementation)}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(0, host_copy(tree), {})
    checkpoints.wait()
    assert_same_bits(tree, restore(checkpoints, tree).tree)
    assert_same_bits(tree, restore(checkpoints, host_copy(tree)).tree)


def test_jumanji_state(tmp_path: Path) -> None:
    from jumanji.environments.routing.lbf.env import LevelBasedForaging

    environment = LevelBasedForaging()
    state, _ = jax.jit(environment.reset)(jax.random.key(0))
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(0, {"environment": host_copy(state)}, {})
    checkpoints.wait()
    assert_same_bits(state, restore(checkpoints, {"environment": state}).tree["environment"])


def test_host_copy_outlives_donation() -> None:
    array = jnp.arange(100_000.0)
    copy = host_copy(array)
    jax.jit(lambda x: x * 0 - 1, donate_argnums=0)(array).block_until_ready()
    np.testing.assert_array_equal(copy, np.arange(100_000, dtype=np.float32))


def test_a_part_comes_back_without_a_template(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.restore(make_tree()) is None
    with pytest.raises(CoveyError, match="no checkpoint"):
        checkpoints.restore_part("best")
    save(checkpoints, 1)
    best = checkpoints.restore_part("best")
    np.testing.assert_array_equal(best["agents"]["layer_1"], np.arange(4))
    assert_same_bits(make_tree(1)["best"], best)
    learner = checkpoints.restore_part("learner")
    assert set(learner) == {"params", "key", "count"}
    assert checkpoints.restore_part("actor")["1"]["second"]["0"].shape == (0, 4)
    assert checkpoints.restore_part("nothing") == {}
    assert list(restore(checkpoints, {"best": make_tree()["best"]}).tree) == ["best"]
    with pytest.raises(CoveyError, match="has no 'worst'"):
        checkpoints.restore_part("worst")


@pytest.mark.parametrize(("keep", "left"), [(1, [4]), (2, [3, 4]), (3, [2, 3, 4]), (0, [0, 1, 2, 3, 4])])
def test_retention(tmp_path: Path, keep: int, left: list[int]) -> None:
    checkpoints = Checkpoints(tmp_path, keep=keep)
    for iteration in range(5):
        checkpoints.save(iteration, {"a": np.ones(3)}, {})
    checkpoints.wait()
    assert checkpoints.iterations() == left
    assert len(list(tmp_path.iterdir())) == len(left)


def test_saving_an_iteration_again_replaces_it(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for iteration, finished in [(1, False), (2, False), (2, True), (2, "twice")]:
        save(checkpoints, iteration, finished=finished)
    assert checkpoints.iterations() == [1, 2]
    assert len(list(tmp_path.iterdir())) == 2
    assert restore(checkpoints, {}).meta == {"finished": "twice"}


def remove_index(path: Path) -> None:
    (path / "index.json").unlink()


def cut_index(path: Path) -> None:
    content = (path / "index.json").read_text()
    (path / "index.json").write_text(content[: len(content) // 2])


def empty_index(path: Path) -> None:
    (path / "index.json").write_text("{}")


def remove_arrays(path: Path) -> None:
    shutil.rmtree(path / "arrays")


def largest_file(path: Path) -> Path:
    return max((file for file in (path / "arrays").rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)


def remove_content(path: Path) -> None:
    largest_file(path).unlink()


def cut_content(path: Path) -> None:
    os.truncate(largest_file(path), largest_file(path).stat().st_size // 2)


def garble_content(path: Path) -> None:
    file = largest_file(path)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)


def garble_every_small_file(path: Path) -> None:
    for file in path.rglob("*"):
        if file.is_file() and file.stat().st_size < 4096:
            file.write_bytes(b"\xff\x00garbage")


DAMAGES = [
    remove_index,
    cut_index,
    empty_index,
    remove_arrays,
    remove_content,
    cut_content,
    garble_content,
    garble_every_small_file,
]


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.mark.parametrize(
    "name", ["index.json", "arrays/_METADATA", "arrays/_CHECKPOINT_METADATA", "arrays/0_packed/.zarray"]
)
def test_no_flipped_bit_passes_unnoticed(tmp_path: Path, name: str) -> None:
    warnings: list[str] = []
    checkpoints = Checkpoints(tmp_path, warn=warnings.append)
    for iteration in (1, 2):
        checkpoints.save(iteration, {"a": {"one": np.full(9, iteration), "two": np.arange(4.0)}}, {"best": 0.5})
    checkpoints.wait()
    path = tmp_path / "00000002" / name
    content = path.read_bytes()
    rng = random.Random(name)
    for bit in rng.sample(range(8 * len(content)), 25):
        flip(path, bit)
        restored = checkpoints.restore({"a": {"one": np.zeros(9, int), "two": np.zeros(4)}})
        assert restored is not None
        assert restored.iteration == (1 if warnings else 2), (bit, path.read_bytes())
        np.testing.assert_array_equal(restored.tree["a"]["one"], np.full(9, restored.iteration))
        assert restored.meta == {"best": 0.5} and len(warnings) <= 1
        if name == "index.json":
            assert warnings and "checksum" in warnings[0]
        np.testing.assert_array_equal(checkpoints.restore_part("a")["one"], np.full(9, restored.iteration))
        warnings.clear()
        path.write_bytes(content)


def without_checksum(path: Path) -> None:
    """As earlier versions wrote it."""
    index = json.loads((path / "index.json").read_text())
    del index["format"], index["crc32"]
    (path / "index.json").write_text(json.dumps(index))


def test_checkpoints_of_earlier_versions(tmp_path: Path) -> None:
    warnings: list[str] = []
    checkpoints = Checkpoints(tmp_path, warn=warnings.append)
    for iteration in (1, 2):
        save(checkpoints, iteration)
        without_checksum(tmp_path / f"0000000{iteration}")
    assert restore(checkpoints, make_tree()).iteration == 2 and not warnings
    index = tmp_path / "00000002" / "index.json"
    index.write_text(index.read_text().replace('"layer_0"', '"layer_8"'))
    restored = checkpoints.restore(make_tree())
    assert restored is not None
    assert restored.iteration == 1 and len(warnings) == 1 and "layer_0" in warnings[0]
    assert checkpoints.restore_at(2, make_tree()) is None
    index.write_text(index.read_text().replace('"best"', '"bess"'))
    assert_same_bits(make_tree(1)["best"], checkpoints.restore_part("best"))


def test_another_run_is_told_although_older_checkpoints_are_there(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, warn=pytest.fail)
    for iteration in (1, 2):
        save(checkpoints, iteration)
    template = make_tree()
    template["best"]["agents"]["layer_0"] = jnp.ones((3, 2))
    with pytest.raises(CoveyError, match=r"does not fit this run: agents/layer_0 is float32\[2,3\]"):
        checkpoints.restore(template)


def test_coefficients_that_were_not_stored_are_those_of_the_template(tmp_path: Path) -> None:
    """Earlier versions stored two of them. Other leaves that are missing do not fit, and nor does a shape alone."""
    checkpoints = Checkpoints(tmp_path)
    stored = {"agents": {"coefficients": {"lr": jnp.float32(0.5)}, "params": jnp.arange(3)}}
    checkpoints.save(1, host_copy({"learner": stored}), {})
    checkpoints.wait()
    now = {"clip": jnp.float32(0.2), "lr": jnp.float32(1.0), "tau": jnp.float32(0.1)}
    template = {"agents": {"coefficients": now, "params": jax.ShapeDtypeStruct((3,), jnp.int32)}}
    found = restore(checkpoints, {"learner": template}).tree["learner"]["agents"]
    assert found["coefficients"] == {"clip": np.float32(0.2), "lr": np.float32(0.5), "tau": np.float32(0.1)}
    np.testing.assert_array_equal(found["params"], [0, 1, 2])
    shapes = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in now}
    for odd in (template["agents"] | {"other": now["lr"]}, template["agents"] | {"coefficients": shapes}):
        with pytest.raises(CoveyError, match="does not fit this run"):
            checkpoints.restore({"learner": {"agents": odd}})


def test_a_failed_save_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, arrays: Any) -> None:
        path.mkdir()
        raise ValueError(f"RESOURCE_EXHAUSTED: Error writing file {path}:\n [{os.strerror(28)}]\n at kvstore.cc:12")

    monkeypatch.setattr(checkpoint, "_save_arrays", full)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"a": np.ones(3)}, {})
    with pytest.raises(CoveyError, match=r"No space left on device$"):
        checkpoints.wait()
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_lost_the_run_removes_nothing(tmp_path: Path) -> None:
    """Another one may be writing its checkpoint right now."""

    def lose() -> None:
        raise LeaseLost("run was taken over by process 7")

    (tmp_path / ".00000004.tmp").mkdir()
    checkpoints = Checkpoints(tmp_path, check=lose)
    checkpoints.save(3, {"a": np.ones(3)}, {})
    with pytest.raises(LeaseLost, match=r"^run was taken over by process 7$"):
        checkpoints.wait()
    assert [path.name for path in tmp_path.iterdir()] == [".00000004.tmp"]


def test_one_iteration_of_several(tmp_path: Path) -> None:
    warnings: list[str] = []
    checkpoints = Checkpoints(tmp_path, keep=3, warn=warnings.append)
    for iteration in (1, 2):
        save(checkpoints, iteration)
    asked: list[dict[str, Any]] = []

    def only_best(meta: dict[str, Any]) -> dict[str, Any]:
        asked.append(meta)
        return {"best": make_tree()["best"]}

    restored = checkpoints.restore_at(1, only_best)
    assert restored is not None
    assert restored.iteration == 1 and list(restored.tree) == ["best"] and asked[0] == restored.meta
    garble_content(tmp_path / "00000001")
    assert checkpoints.restore_at(1, make_tree()) is None and len(warnings) == 1
    assert checkpoints.restore_at(7, make_tree()) is None and len(warnings) == 1


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_falls_back(tmp_path: Path, damage: Callable[..., Any]) -> None:
    warnings: list[str] = []
    checkpoints = Checkpoints(tmp_path, keep=3, warn=warnings.append)
    save(checkpoints, 1)
    save(checkpoints, 2)
    damage(tmp_path / "00000002")
    restored = checkpoints.restore(make_tree())
    assert restored is not None
    assert restored.iteration == 1
    assert_same_bits(make_tree(1), restored.tree)
    assert len(warnings) == 1 and "\n" not in warnings[0] and "00000002" in warnings[0]
    # The run goes on from there and comes past the damaged one.
    save(checkpoints, 2)
    assert restore(checkpoints, make_tree()).iteration == 2
    assert len(warnings) == 1
    damage(tmp_path / "00000001")
    damage(tmp_path / "00000002.1")
    with pytest.raises(CoveyError, match="every checkpoint"):
        checkpoints.restore(make_tree())


def test_a_save_removes_what_a_fallen_back_run_left_ahead(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for iteration in (10, 20, 30):
        save(checkpoints, iteration)
    save(checkpoints, 25)
    assert checkpoints.iterations() == [20, 25]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tree: tree["best"]["agents"].update(layer_2=jnp.ones(3)), "3 leaves|2 leaves, expected 3.*layer_2"),
        (lambda tree: tree["best"]["agents"].pop("layer_1"), "2 leaves, expected 1.*layer_1"),
        (lambda tree: tree["best"]["agents"].update(layer_0=jnp.ones((3, 2))), r"float32\[2,3\], expected .*\[3,2\]"),
        (lambda tree: tree["best"]["agents"].update(layer_1=jnp.ones(4)), r"agents/layer_1 is int32.*float32"),
        (lambda tree: tree.update(learner={"other": jnp.ones(3)}), "'learner' does not fit"),
        (lambda tree: tree.update(extra={}), "has no 'extra'"),
    ],
)
def test_a_template_that_does_not_fit(tmp_path: Path, change: Callable[..., Any], message: str) -> None:
    checkpoints = Checkpoints(tmp_path, warn=pytest.fail)
    save(checkpoints, 0)
    template = make_tree()
    change(template)
    with pytest.raises(CoveyError, match=message) as caught:
        checkpoints.restore(template)
    assert "\n" not in str(caught.value)


def test_save_returns_at_once_and_waits_for_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    write = checkpoint._save_arrays

    def slow_write(path: Path, arrays: Any) -> None:
        release.wait(10)
        write(path, arrays)

    monkeypatch.setattr(checkpoint, "_save_arrays", slow_write)
    checkpoints = Checkpoints(tmp_path)
    start = time.monotonic()
    checkpoints.save(0, {"a": np.ones(3)}, {})
    assert time.monotonic() - start < 1
    assert checkpoints.restore({"a": np.ones(3)}) is None  # not there before it is whole
    threading.Timer(0.2, release.set).start()
    checkpoints.save(1, {"a": np.ones(3)}, {})
    assert checkpoints.iterations() == [0]
    checkpoints.wait()
    assert checkpoints.iterations() == [0, 1]


def test_what_goes_wrong_in_the_background_surfaces_on_the_next_call(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    checkpoints = Checkpoints(tmp_path / "file")
    checkpoints.save(0, {"a": np.ones(3)}, {})
    with pytest.raises(CoveyError, match="cannot write checkpoint"):
        checkpoints.save(1, {"a": np.ones(3)}, {})
    checkpoints.wait()  # told once
    checkpoints = Checkpoints(tmp_path / "folder")
    checkpoints.save(2, {"a": "words"}, {})
    with pytest.raises(CoveyError, match="arrays and numbers"):
        checkpoints.wait()


def test_nothing_is_pickled_and_orbax_can_read_the_arrays(tmp_path: Path) -> None:
    import orbax.checkpoint as ocp

    save(Checkpoints(tmp_path), 0)
    arrays = ocp.Checkpointer(ocp.PyTreeCheckpointHandler()).restore((tmp_path / "00000000" / "arrays").absolute())
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.uint8)}
    index = json.loads((tmp_path / "00000000" / "index.json").read_text())
    leaf = next(leaf for leaf in index["leaves"] if leaf["dtype"] == "bfloat16")
    content = arrays[leaf["array"]][leaf["offset"] : leaf["offset"] + 18]
    np.testing.assert_array_equal(content.copy().view(ml_dtypes.bfloat16), make_tree()["actor"][1].first)


WRITER = textwrap.dedent(
    """
    import sys
    import numpy as np
    from covey.experiment.recording.checkpoint import Checkpoints

    def tree(iteration):
        leaves = {f"leaf_{i}": np.full((20, 20), iteration + i) for i in range(20)}
        return {"learner": leaves, "best": np.ones(iteration)}

    def run(path):
        checkpoints = Checkpoints(path, keep=2, warn=lambda text: sys.exit(text))
        iteration = max(checkpoints.iterations(), default=0)
        if iteration:
            restored = checkpoints.restore(tree(iteration))
            assert restored is not None
            assert restored.iteration == iteration == restored.meta["iteration"]
            assert restored.tree["learner"]["leaf_3"][0, 0] == iteration + 3
        print("started", flush=True)
        while True:
            iteration += 1
            checkpoints.save(iteration, tree(iteration), {"iteration": iteration})
    """
)


def test_killed_at_any_moment_the_newest_is_whole(tmp_path: Path) -> None:
    (tmp_path / "writer.py").write_text(WRITER)
    path = tmp_path / "checkpoints"
    delays = random.Random(1)
    last = 0
    for _ in range(3):
        command = [sys.executable, "-c", f"import writer; writer.run({str(path)!r})"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path) as process:
            assert process.stdout is not None and process.stdout.readline() == b"started\n"
            deadline = time.monotonic() + 20
            reader = Checkpoints(path, warn=pytest.fail)
            while max(reader.iterations(), default=0) <= last + 1 and time.monotonic() < deadline:
                time.sleep(0.005)
            time.sleep(delays.uniform(0, 0.1))
            os.kill(process.pid, signal.SIGKILL)
        newest = max(reader.iterations())
        assert newest > last
        restored = reader.restore({"best": np.ones(newest)})
        assert restored is not None
        assert restored.iteration == restored.meta["iteration"] == newest
        last = newest


def test_templates_may_be_dataclasses_of_dataclasses(tmp_path: Path) -> None:
    outer = dataclasses.make_dataclass("Outer", ["inner", "value"], frozen=True)
    jax.tree_util.register_dataclass(outer, data_fields=["inner", "value"], meta_fields=[])
    tree = {"outer": outer(inner=outer(inner=jnp.ones(2), value=None), value=jnp.zeros(3))}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(0, host_copy(tree), {})
    checkpoints.wait()
    assert_same_bits(tree, restore(checkpoints, tree).tree)
    assert set(checkpoints.restore_part("outer")) == {"inner", "value"}

"""`init_from`: what another run learned, put into a new learner.

An algorithm's state declares which of its fields were learned (`covey.types.learned`): parameters, target networks,
moments. Their arrays come from the other run where names and shapes fit; statistics come whole or not at all.
Everything else starts fresh: the optimiser, counters, schedules, and arrays that do not fit. A target network that is
not taken, for example because the other algorithm has none, starts equal to its parameters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
import numpy as np

from covey.algorithms.seats import learned_part
from covey.errors import CoveyError, UsageError
from covey.experiment.recording.checkpoint import Checkpoints, paths_and_leaves
from covey.experiment.recording.run_directory import RunDirectory, run_directories
from covey.types import LEARNED, Algorithm, Learned, PyTree

Path = tuple[str, ...]  # of a leaf in a learner: group, field, and names within the field
MISFITS_NAMED = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransferSource:
    """A run to start from, and all arrays of its learner."""

    path: str
    arrays: Mapping[Path, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transfer:
    """What of a source fits a learner. Called with that learner, it gives the one to start with."""

    taken: Mapping[Path, np.ndarray]
    copied: Mapping[Path, Path]  # leaves of target networks, and the parameters that they start equal to
    description: str

    def __call__(self, learner: PyTree) -> PyTree:
        own = dict(paths_and_leaves(learner))

        def initial(path: Path, leaf: jax.Array) -> jax.Array:
            found = self.taken.get(self.copied.get(path, path))
            return leaf if found is None else jax.device_put(np.asarray(found, leaf.dtype), leaf.sharding)

        leaves = [initial(path, leaf) for path, leaf in own.items()]
        return jax.tree.unflatten(jax.tree.structure(learner), leaves)


def read_source(path: str) -> TransferSource:
    """The newest intact checkpoint of the run in `path`, or of its first seed."""
    try:
        run = RunDirectory.open(run_directories(path)[0])
        learner = Checkpoints(run.checkpoints).restore_part("learner")
    except CoveyError as error:  # bad input, whatever the reason: this run has not started
        raise UsageError(f"init_from={path}: {error}") from error
    return TransferSource(path=path, arrays=dict(paths_and_leaves(learner)))


def plan_transfer(source: TransferSource, algorithm: Algorithm) -> Transfer:
    """Compares shapes only, so that a source that does not fit is refused before a run directory exists."""
    learner = learned_part(jax.eval_shape(algorithm.init, jax.random.key(0)))
    shapes = {path: leaf.shape for path, leaf in paths_and_leaves(learner)}
    fields = learned_fields(learner)
    if not any(declared.parameters for declared in fields.values()):
        raise UsageError(
            f"init_from={source.path}: this algorithm's state declares no learned parameters; "
            "mark their field in its class: `params: Any = covey.types.learned()`"
        )
    fitting = {path for path, shape in shapes.items() if path in source.arrays and source.arrays[path].shape == shape}
    fitting -= incomplete_statistics(shapes, fields, fitting)
    taken: dict[Path, np.ndarray] = {}
    copied: dict[Path, Path] = {}
    for path in sorted(shapes, key=lambda path: _is_target(fields.get(path[:2]))):
        declared = fields.get(path[:2])
        if declared is None:
            continue
        fits = path in fitting
        if declared.copies is None:
            if fits:
                taken[path] = source.arrays[path]
            continue
        origin = (path[0], *declared.copies.split("."), *path[2:])
        if fits and origin in taken:  # a target of parameters that were not taken belongs to other parameters
            taken[path] = source.arrays[path]
        else:
            copied[path] = origin
    if not weights(shapes, fields) & taken.keys():
        raise UsageError(f"init_from={source.path}: none of its parameters fits this run")
    description = f"init_from={source.path}: {describe(source, shapes, fields, taken, copied)}"
    return Transfer(taken=taken, copied=copied, description=description)


def learned_fields(learner: PyTree) -> dict[Path, Learned]:
    """The fields that were learned, as (group, field), and what their declaration says."""
    return {
        (group, field.name): field.metadata[LEARNED]
        for group, state in learner.items()
        for field in (dataclasses.fields(state) if dataclasses.is_dataclass(state) else ())
        if LEARNED in field.metadata
    }


def incomplete_statistics(
    shapes: Mapping[Path, tuple[int, ...]], fields: Mapping[Path, Learned], fitting: set[Path]
) -> set[Path]:
    """The arrays of statistics that do not fit as a whole.

    The weight of moments fits any run. Beside a fresh mean and variance it would claim that they summarise a whole
    training, and normalisation would hardly change from there.
    """
    broken = {path[:2] for path in shapes if path not in fitting and path[:2] in fields}
    return {path for path in shapes if path[:2] in broken and not fields[path[:2]].parameters}


def weights(shapes: Mapping[Path, tuple[int, ...]], fields: Mapping[Path, Learned]) -> set[Path]:
    """The arrays of which at least one must fit: parameters, without biases and scalars, which fit almost any run."""
    parameters = {path for path in shapes if path[:2] in fields and fields[path[:2]].parameters}
    return {path for path in parameters if len(shapes[path]) > 1} or parameters


def _is_target(declared: Learned | None) -> bool:
    return declared is not None and declared.copies is not None


# ------------------------------------------------------------------------------------------------------------ words


def describe(
    source: TransferSource,
    shapes: Mapping[Path, tuple[int, ...]],
    fields: Mapping[Path, Learned],
    taken: Mapping[Path, np.ndarray],
    copied: Mapping[Path, Path],
) -> str:
    """One line: which fields were taken, which start fresh, and which arrays do not fit."""
    one_group = len({path[0] for path in shapes}) == 1

    def name(path: Path) -> str:
        return "/".join(path[1:] if one_group else path)

    took, fresh = [], []
    for field in dict.fromkeys(path[:2] for path in shapes):
        leaves = [path for path in shapes if path[:2] == field]
        number = sum(path in taken for path in leaves)
        if number:
            took.append(f"{name(field)} ({_share(number, len(leaves))})")
        elif any(copied.get(path) in taken for path in leaves):
            took.append(f"{name(field)} (equal to {fields[field].copies})")
        else:
            fresh.append(name(field))
    misfits = [path for path in shapes if path[:2] in fields and path in source.arrays and path not in taken]
    misfits = [path for path in misfits if source.arrays[path].shape != shapes[path]]
    words = [f"took {', '.join(took)}", f"fresh: {', '.join(fresh)}" if fresh else ""]
    if misfits:
        named = [f"{name(p)} {list(source.arrays[p].shape)} into {list(shapes[p])}" for p in misfits[:MISFITS_NAMED]]
        more = len(misfits) - len(named)
        words.append(f"did not fit: {', '.join(named)}{f' and {more} more' if more else ''}")
    return "; ".join(filter(None, words))


def _share(number: int, total: int) -> str:
    return f"{number} arrays" if number == total else f"{number} of {total} arrays"

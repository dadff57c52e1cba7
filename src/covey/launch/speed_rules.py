"""What limits the speed of a machine, and which device and number of environments to recommend.

The limit of a row is the first of these that applies:

    transfers              fetching a chunk's metrics takes a fifth of the time or more
    launch overhead        starting a chunk takes a fifth of the time or more, or the time of an iteration hardly grows
                           with the number of environments (elasticity below 1/3: eight times as many take less than
                           twice as long). Then starting operations takes the time, not computing them.
    too few environments   the time grows less than in proportion (elasticity below 0.8: eight times as many take less
                           than 5.3 times as long)
    compute                the time grows in proportion: more environments would not be faster

Growth is measured to the next number of environments or, for the largest, from the one before. The recommendation is
the fastest device with the smallest number of environments that reaches 90% of its best speed: with more environments
there are fewer updates for the same frames, and frames per second alone do not learn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

PARTS = ("simulation", "acting", "update")
FLAT, PROPORTIONAL = 1 / 3, 0.8  # elasticities: log(growth of time) / log(growth of environments)
NOTABLE = 0.2  # share of the time from which overhead counts as the limit
NEARLY_BEST = 0.9  # share of the best speed
Row = dict[str, Any]  # see the schema in speed.py


def judge(rows: Sequence[Row]) -> list[Row]:
    """The rows, each with its `limit` and its `largest_part`."""
    judged = []
    for row in rows:
        parts = row["seconds_per_iteration"]
        largest = max(PARTS, key=lambda part: parts[part])
        judged.append(row | {"limit": find_limit(row, rows), "largest_part": largest})
    return judged


def find_limit(row: Row, rows: Sequence[Row]) -> str | None:
    """What limits a row, by the rules above; None if there is no other row to compare with."""
    seconds, chunk = row["seconds_per_iteration"]["whole"], row["iterations_per_chunk"]
    launch, transfer = row["launch_seconds"] / chunk, row["transfer_seconds"] / chunk
    total = seconds + launch + transfer
    if transfer >= NOTABLE * total:
        return "transfers"
    if launch >= NOTABLE * total:
        return "launch overhead"
    growth = elasticity(row, rows)
    if growth is None:
        return None
    if growth < FLAT:
        return "launch overhead"
    return "too few environments" if growth < PROPORTIONAL else "compute"


def elasticity(row: Row, rows: Sequence[Row]) -> float | None:
    """log(ratio of times) / log(ratio of environments), to the next number of environments on the same device."""
    same = sorted((other for other in rows if other["device"] == row["device"]), key=lambda r: r["environments"])
    if len(same) < 2:
        return None
    index = next(i for i, other in enumerate(same) if other["environments"] == row["environments"])
    first, second = (same[index], same[index + 1]) if index + 1 < len(same) else (same[index - 1], same[index])
    times = second["seconds_per_iteration"]["whole"] / first["seconds_per_iteration"]["whole"]
    return math.log(times) / math.log(second["environments"] / first["environments"])


def rate(row: Row) -> float:
    """Frames per second of the whole loop."""
    return float(row["frames_per_second"]["whole"])


def choose_row(rows: Sequence[Row]) -> Row:
    """The row with the fewest environments that is nearly as fast as the fastest row."""
    best = max(map(rate, rows))
    return min((row for row in rows if rate(row) >= NEARLY_BEST * best), key=lambda row: row["environments"])


def by_device(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each device."""
    return {device: [row for row in rows if row["device"] == device] for device in {r["device"]: 0 for r in rows}}


def recommend(rows: Sequence[Row]) -> dict[str, Any]:
    """The fastest device and the number of environments to use on it."""
    fastest = max(by_device(rows).values(), key=lambda own: max(map(rate, own)))
    row = choose_row(fastest)
    is_cpu = row["device"].startswith("cpu")
    words = f"experiment.platform={'cpu' if is_cpu else 'auto'} experiment.devices={row['devices']}"
    return {
        "device": row["device"],
        "devices": row["devices"],
        "environments": row["environments"],
        "frames_per_second": rate(row),
        "words": f"{words} experiment.num_envs={row['environments']}",
    }


def describe_rows(rows: Sequence[Row], left_out: Sequence[str] = ()) -> list[str]:
    """The findings in sentences; `left_out` are the reasons for missing rows."""
    findings = [_describe_device(device, own) for device, own in by_device(rows).items()]
    findings += _describe_cores(rows)
    findings += _describe_accelerators(rows)
    return [*findings, *(f"left out: {reason}" for reason in left_out)]


def shares(row: Row) -> dict[str, float]:
    """Each part's share of the time of the whole loop."""
    seconds = row["seconds_per_iteration"]
    return {part: seconds[part] / seconds["whole"] for part in PARTS}


def _describe_device(device: str, rows: Sequence[Row]) -> str:
    row = choose_row(rows)
    split = ", ".join(f"{part} {share:.0%}" for part, share in shares(row).items())
    few = min(rows, key=lambda other: other["environments"])
    limits = f", limited by {row['limit']}" if row["limit"] else ""
    text = f"{device}: {row['environments']:,} environments run at {rate(row):,.0f} frames/s ({split}){limits}"
    if few is not row:
        text += f"; {few['environments']:,} at {rate(few):,.0f}"
        text += f" ({few['limit']})" if few["limit"] else ""
    return text


def _describe_cores(rows: Sequence[Row]) -> list[str]:
    one = {row["environments"]: row for row in rows if row["device"] == "cpu x1"}
    pairs = [
        (row, one[row["environments"]])
        for row in rows
        if row["device"].startswith("cpu x") and row["devices"] > 1 and row["environments"] in one
    ]
    if not pairs:
        return []
    many, single = max(pairs, key=lambda pair: rate(pair[0]))
    times = rate(many) / rate(single)
    return [f"{many['devices']} cores are {times:.2f} times as fast as one, at {many['environments']:,} environments"]


def _describe_accelerators(rows: Sequence[Row]) -> list[str]:
    """Where each accelerator is slower than the CPU, and from how many environments it is faster."""
    findings = []
    cpu: dict[int, float] = {}
    for row in rows:
        if row["device"].startswith("cpu"):
            cpu[row["environments"]] = max(rate(row), cpu.get(row["environments"], 0.0))
    for device, own in by_device(rows).items():
        common = sorted((row for row in own if row["environments"] in cpu), key=lambda row: row["environments"])
        if device.startswith("cpu") or not common:
            continue
        slower = [row for row in common if rate(row) < cpu[row["environments"]]]
        if not slower:
            findings.append(f"{device} is faster than the CPU at every number of environments")
            continue
        row = slower[-1]
        times = rate(row) / cpu[row["environments"]]
        cause = f", limited by {row['limit']}" if row["limit"] else ""
        where = f"at {row['environments']:,} environments ({times:.2f} times as fast{cause})"
        text = f"{device} is slower than the CPU {where}"
        faster = [other for other in common if other["environments"] > row["environments"]]
        findings.append(f"{text}; it is faster from {faster[0]['environments']:,} environments" if faster else text)
    return findings

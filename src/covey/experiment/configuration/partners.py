"""Who plays some seats in place of the team, as a configuration names them: `partners.GROUP=…`, `partners.GROUP.1=…`.

In a `Config`, partners are a flat mapping from seats (`agents.1`, or `agents` for the whole group) to a name or a list
of names, of which one is drawn for each episode. `rotate` is one of its keys. `opponents.` is another name for
`partners.`. `covey.experiment.loading.partners` checks whether they fit a task.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from covey.errors import UsageError

RANDOM, REFERENCE = "random", "reference"
TEAM = "team"  # in an evaluation: the run's own policy, in a seat where a partner was in training
ROTATE = "rotate"
PREFIXES = ("partners", "opponents")


def is_partner_key(key: str) -> bool:
    """Whether `key` of a command line is about partners: `partners.agents.1`, `opponents.adversary`."""
    return key.partition(".")[0] in PREFIXES


def partner_value(seat: str, text: str) -> Any:
    """The value of `partners.SEAT=text`: names as typed, `[a,b]` as a list, and `rotate` as true or false."""
    text = text.strip()
    if seat == ROTATE:
        return {"true": True, "false": False}.get(text.lower(), text)
    if text.startswith("[") and text.endswith("]"):
        return [_unquoted(item) for item in text[1:-1].split(",")]
    return _unquoted(text)


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def read_partners(texts: Mapping[str, str], before: Mapping[str, Any]) -> dict[str, Any]:
    """The partners that a command line names, by keys such as `partners.agents.1`, on top of those `before`.

    `partners=null` drops those.
    """
    found: dict[str, dict[str, Any]] = {prefix: {} for prefix in PREFIXES}
    kept = dict(before)
    for key, text in texts.items():
        prefix, _, seat = key.partition(".")
        if seat:
            found[prefix][seat] = partner_value(seat, text)
        elif text.strip() in ("null", "{}"):
            kept = {}
        else:
            raise UsageError(f"{key}={text}: say which seat, as in partners.GROUP=… or partners.GROUP.1=…")
    return {**kept, **join_partners(found["partners"], found["opponents"])}


def join_partners(partners: Mapping[str, Any], opponents: Mapping[str, Any]) -> dict[str, Any]:
    """`partners` and `opponents`, which are two names for the same thing; the same seat in both is an error."""
    for key in partners.keys() & opponents.keys():
        raise UsageError(f"opponents.{key} is another name for partners.{key}: give only one of them")
    return {**partners, **opponents}


def partners_in_evaluation(trained: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The partners of an evaluation: those `given`, and in groups where none is given, those of training.

    `team` in place of a name gives a seat back to the run's own policy.
    """
    groups = {key.partition(".")[0] for key in given if key != ROTATE}
    seats = {key: value for key, value in trained.items() if key != ROTATE and key.partition(".")[0] not in groups}
    rotate = {ROTATE: trained[ROTATE]} if ROTATE in trained and any("." in key for key in seats) else {}
    return {**seats, **rotate, **{key: value for key, value in given.items() if value != TEAM}}


def flatten_partners(tree: Any) -> dict[str, Any]:
    """A mapping of a file, where `agents: {1: random}` is `agents.1: random`."""
    if tree is None:
        return {}
    if not isinstance(tree, Mapping):
        raise UsageError(f"partners takes a mapping from seats to names, not {tree!r}")
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{index}": item for index, item in value.items()}
        else:
            flat[str(key)] = list(value) if isinstance(value, (list, tuple)) else value
    return flat


def taken_whole(partners: Mapping[str, Any], groups: Collection[str]) -> tuple[str, ...]:
    """The groups that partners play as a whole."""
    return tuple(group for group in groups if group in partners)


def describe_seat(key: str, value: Any) -> str:
    """Who plays a seat, in words: `adversary by random`, `agents.1 by random or runs/other`."""
    if key == ROTATE:
        return "places drawn for each episode" if value else "places fixed"
    return f"{key} by {value if isinstance(value, str) else ' or '.join(value)}"

"""Values of a TOML file, checked one by one: an unknown key or a wrong value is refused by its name and place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any, str], Any]  # (value, where it stands) -> the value, or ExperimentError


class ExperimentError(ValueError):
    """An experiment's file, or its folder, is not as it must be: one sentence for the person in front of it."""


def table(value: Any, where: str, known: Mapping[str, Check], *, needs: tuple[str, ...] = ()) -> dict[str, Any]:
    """The checked values of a table; ExperimentError for a key that is not `known`, or one of `needs` that lacks."""
    if not isinstance(value, Mapping):
        raise ExperimentError(f"{where} is {_short(value)}; expected a table")
    inside = f"{where}." if where else ""
    for key in value:
        if key not in known:
            place = f"table {where!r}" if where else "the top of the file"
            raise ExperimentError(f"{place} has an unknown key {key!r}; it may have {', '.join(known)}")
    for key in needs:
        if key not in value:
            raise ExperimentError(f"{inside}{key} is missing")
    return {key: known[key](given, f"{inside}{key}") for key, given in value.items()}


def text(value: Any, where: str) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ExperimentError(f"{where} is {_short(value)}; expected a text in quotes")
    return value


def flag(value: Any, where: str) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        raise ExperimentError(f"{where} is {_short(value)}; expected true or false")
    return value


def whole(least: int, most: int | None = None) -> Check:
    """A whole number of `least` or more, up to `most`."""
    expected = f"a whole number of {least} or more" if most is None else f"a whole number from {least} to {most}"

    def check(value: Any, where: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least or (most and value > most):
            raise ExperimentError(f"{where} is {_short(value)}; expected {expected}")
        return value

    return check


def milliseconds(value: Any, where: str) -> float:
    """A finite number, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not (0 <= value < math.inf):
        raise ExperimentError(f"{where} is {_short(value)}; expected milliseconds, 0 or more")
    return float(value)


def one_of(*choices: str) -> Check:
    """One of these texts."""

    def check(value: Any, where: str) -> str:
        if value not in choices or not isinstance(value, str):
            raise ExperimentError(f"{where} is {_short(value)}; choose one of {', '.join(choices)}")
        return value

    return check


def many(check_one: Check) -> Check:
    """A list of at least one, none of them twice; as a tuple."""

    def check(value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list) or not value:
            raise ExperimentError(f"{where} is {_short(value)}; expected a list with at least one entry")
        found = tuple(check_one(entry, f"{where}[{place}]") for place, entry in enumerate(value))
        for place, entry in enumerate(found):
            if entry in found[:place]:
                raise ExperimentError(f"{where} has {entry!r} twice")
        return found

    return check


def either(*checks: Check, expected: str) -> Check:
    """What one of the checks takes."""

    def check(value: Any, where: str) -> Any:
        for attempt in checks:
            try:
                return attempt(value, where)
            except ExperimentError:
                continue
        raise ExperimentError(f"{where} is {_short(value)}; expected {expected}")

    return check


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."

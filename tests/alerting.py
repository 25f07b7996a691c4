"""The alerts of `deploy/prometheus/rules.yaml`: which of their conditions hold for scraped metrics.

This understands the few forms that the rules have. Where `promtool` is installed, a test holds it
against Prometheus itself.
"""

import math
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

RULES: Final = Path(__file__).parents[1] / "deploy" / "prometheus" / "rules.yaml"

Labels = frozenset[tuple[str, str]]
Samples = Mapping[tuple[str, Labels], float]
"""Values by the names and labels of their series."""

_COMPARISON: Final = re.compile(
    r"(?P<time>time\(\) - )?(?P<sum>sum|min|max)(?: by \((?P<by>\w+)\))? \((?P<inner>.+)\)"
    r" (?P<op>[<>]|==) (?:(?P<limit>\d+)|max\((?P<other>\w+)\))"
)
_ABSENT: Final = re.compile(r"absent\((\w+)\)")
_INNER: Final = re.compile(
    r"(?P<name>\w+)(?:\{(?P<label>\w+)(?P<match>=~?)\"(?P<value>[^\"]+)\"\})?(?P<positive> > 0)?"
)
_INCREASE: Final = re.compile(r"increase\((.+)\[\d+m\]\)")

_SUMS: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {"sum": sum, "min": min, "max": max}


def rules() -> list[dict[str, Any]]:
    """The rules as they are written."""
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def samples(*texts: str) -> Samples:
    """What several services have answered to a scrape, each under an instance of its own."""
    return {
        (sample.name, frozenset({**sample.labels, "instance": str(number)}.items())): sample.value
        for number, text in enumerate(texts)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def holding(before: Samples, after: Samples) -> set[str]:
    """The alerts whose conditions hold, whatever time they have to hold for. `before` is an earlier
    scrape, for what increases.
    """
    return {rule["alert"] for rule in rules() if _holds(rule["expr"], before, after)}


def _holds(expression: str, before: Samples, after: Samples) -> bool:
    return any(_holds_alone(part, before, after) for part in expression.split(" or "))


def _holds_alone(expression: str, before: Samples, after: Samples) -> bool:
    if absent := _ABSENT.fullmatch(expression):
        return not any(name == absent[1] for name, _ in after)
    # `sum(x)` and `sum by (y) (x)`.
    spaced = re.sub(r"^((?:time\(\) - )?(?:sum|min|max))\(", r"\1 (", expression)
    comparison = _COMPARISON.fullmatch(spaced)
    assert comparison is not None, f"no form of a rule: {expression}"
    groups: defaultdict[str, list[float]] = defaultdict(list)
    for labels, value in _values(comparison["inner"], before, after):
        groups[dict(labels).get(comparison["by"] or "", "")].append(value)
    limits = [value for (name, _), value in after.items() if name == comparison["other"]]
    limit = float(comparison["limit"]) if comparison["limit"] else max(limits, default=math.nan)
    return any(_compares(comparison, _SUMS[comparison["sum"]](values), limit) for values in groups.values())


def _compares(comparison: re.Match[str], value: float, limit: float) -> bool:
    value = time.time() - value if comparison["time"] else value
    return {"<": value < limit, ">": value > limit, "==": value == limit}[comparison["op"]]


def _values(inner: str, before: Samples, after: Samples) -> Iterator[tuple[Labels, float]]:
    increase = _INCREASE.fullmatch(inner)
    selector = _INNER.fullmatch(increase[1] if increase else inner)
    assert selector is not None, f"no form of a selector: {inner}"
    for (name, labels), value in after.items():
        if name != selector["name"] or not _matches(selector, labels):
            continue
        increased = value - before.get((name, labels), 0.0) if increase else value
        if not selector["positive"] or increased > 0:
            yield labels, increased


def _matches(selector: re.Match[str], labels: Labels) -> bool:
    if selector["label"] is None:
        return True
    actual = dict(labels).get(selector["label"], "")
    expected = selector["value"]
    return actual == expected if selector["match"] == "=" else re.fullmatch(expected, actual) is not None

"""Errors that say the same are one cluster, whatever numbers, names and places they say it of.

Two steps. What is surely different each time becomes a placeholder, in Spark, row by row. Texts
that then differ in a few words of many are put together, here: there are few of those.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PLACEHOLDERS = (
    (r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+", "<url>"),
    (r"\"[^\"]*\"|'[^']*'|`[^`]*`", "<text>"),
    (r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b", "<id>"),
    (r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?", "<time>"),
    (r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b", "<address>"),
    (r"\b(?:0x[0-9a-fA-F]+|(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{8,})\b", "<id>"),
    (r"[-+]?\d+(?:[.,]\d+)*", "<number>"),
)
"""In this order; patterns that Java and Python read alike."""

TEMPLATES_MAX = 5000
"""The most frequent: they are compared with each other here."""

ALIKE = 0.7
"""So much of the words of two texts of one length must be the same, in the same places."""

ANY = "<any>"


class Template(NamedTuple):
    """An error with placeholders, and the letters that have it."""

    text: str
    letters: int


def templated(dead: "DataFrame") -> "DataFrame":
    """Dead letters with the column ``template``: what their error says of any of them."""
    return dead.withColumn("template", _template())


def _template() -> "Column":
    from pyspark.sql import functions

    error = functions.coalesce(functions.col("error"), functions.lit(""))
    for pattern, placeholder in PLACEHOLDERS:
        error = functions.regexp_replace(error, pattern, placeholder)
    return functions.trim(functions.regexp_replace(error, r"\s+", " "))


def clustered(dead: "DataFrame") -> "DataFrame":
    """Dead letters with the column ``cluster``."""
    from pyspark.sql import functions

    letters = templated(dead)
    counted = letters.groupBy("template").count().orderBy(functions.desc("count"), "template")
    found = [
        Template(str(each[0]), int(each[1])) for each in counted.limit(TEMPLATES_MAX).collect()
    ]
    pairs = letters.sparkSession.createDataFrame(
        list(clusters(found).items()), "template STRING, cluster STRING"
    )
    known = letters.join(functions.broadcast(pairs), "template", "left")
    return known.withColumn("cluster", functions.coalesce("cluster", "template"))


def clusters(templates: Iterable[Template]) -> dict[str, str]:
    """By template: the cluster's text. The most frequent come first and give theirs to the others;
    where those differ it says so."""
    by_length: dict[int, list[list[str]]] = {}
    members: dict[int, list[str]] = {}
    for each in sorted(templates, key=lambda one: (-one.letters, one.text)):
        words = each.text.split()
        groups = by_length.setdefault(len(words), [])
        group = next((one for one in groups if _alike(one, words)), None)
        if group is None:
            group = words
            groups.append(group)
        else:
            group[:] = [a if a == b else ANY for a, b in zip(group, words, strict=True)]
        members.setdefault(id(group), []).append(each.text)
    return {
        text: " ".join(group)
        for groups in by_length.values()
        for group in groups
        for text in members[id(group)]
    }


def _alike(group: list[str], words: list[str]) -> bool:
    same = sum(a == b for a, b in zip(group, words, strict=True))
    return bool(words) and same >= ALIKE * len(words)

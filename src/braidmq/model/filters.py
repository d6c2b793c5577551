"""Topic filters: where ``+`` and ``#`` may stand (MQTT 4.7.1)."""


def misplaced_wildcard(pattern: str) -> str | None:
    """What is wrong with the wildcards of a filter; None when they are whole levels, and ``#`` is
    the last of them."""
    levels = pattern.split("/")
    if any("#" in level for level in levels[:-1]) or ("#" in levels[-1] and levels[-1] != "#"):
        return f"'#' is not the whole last level of the filter {pattern!r}"
    if any("+" in level and level != "+" for level in levels):
        return f"'+' is not a whole level of the filter {pattern!r}"
    return None

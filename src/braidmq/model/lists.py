"""Settings that are lists."""


def listed(setting: str) -> tuple[str, ...]:
    """A setting with commas."""
    return tuple(each.strip() for each in setting.split(",") if each.strip())

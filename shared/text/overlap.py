"""Where a text may have begun to be a mark."""


def overlap(text: str, mark: str) -> int:
    """The length of the longest end of ``text`` that is a proper beginning of ``mark``."""
    lengths = range(min(len(text), len(mark) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(mark[:length])), 0)

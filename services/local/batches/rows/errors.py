"""What can be wrong with rows, before anything is sent."""

from shared.errors import SlackwaterError


class RowsError(SlackwaterError):
    """A file of rows, or its template: what is wrong, and in which line."""

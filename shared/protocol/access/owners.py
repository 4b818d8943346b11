"""Whose files, batches and stored responses are."""

from shared.protocol.access.key_usage import KEY_CLIENT

ORGANIZATION = "organization-"  # what an organization's things begin their owner with; its name follows


def owner_of(key_name: str, organization: str | None = None) -> str:
    """The organization, else the key as its client id names it: no name of the one makes the other. Empty without a
    key: such things are the admins'."""
    if organization:
        return f"{ORGANIZATION}{organization}"
    return f"{KEY_CLIENT}{key_name}" if key_name else ""

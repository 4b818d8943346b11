"""API keys: what each permits, until when, and whose it is."""

import hashlib
import string
from itertools import product

import pytest

from shared.protocol.access.api_keys import (
    PERMISSIONS,
    PREFIX,
    USER_PERMISSIONS,
    ApiKeyRecord,
    KeyTerms,
    Permission,
    hash_api_key,
    key_hint,
    new_api_key,
    shown_time,
)
from shared.protocol.access.owners import owner_of


@pytest.mark.parametrize(
    ("expires_at", "unix_s", "expected"), [(None, 1e12, False), (100, 99.9, False), (100, 100.0, True), (0, 1.0, True)]
)
def test_a_key_ends_at_its_moment(expires_at: int | None, unix_s: float, expected: bool) -> None:
    assert KeyTerms(expires_at=expires_at).has_expired(unix_s) is expected


def test_a_key_permits_the_models_that_it_names_or_any() -> None:
    assert KeyTerms().permits_model("a") and KeyTerms(models=["a", "b"]).permits_model("b")
    assert not KeyTerms(models=["a"]).permits_model("b") and not KeyTerms(models=[]).permits_model("a")


@pytest.mark.parametrize(("own", "asked"), list(product((None, *PERMISSIONS), PERMISSIONS)))
def test_a_key_permits_what_it_names_and_an_admin_watches(own: Permission | None, asked: Permission) -> None:
    allowed = PERMISSIONS if own is None else ("watch", "admin") if own == "admin" else (own,)
    assert KeyTerms(endpoints=None if own is None else [own]).permits(asked) is (asked in allowed)
    assert not KeyTerms(endpoints=[]).permits(asked)
    assert not KeyTerms(endpoints=list(USER_PERMISSIONS)).permits("admin")


@pytest.mark.parametrize(("organization", "named"), [(None, "the API key 'alice'"), ("lab", "the organization 'lab'")])
def test_what_is_made_with_a_key_is_its_organizations(organization: str | None, named: str) -> None:
    key = ApiKeyRecord("alice", "", "", 0, organization=organization)
    assert (key.owner, key.named_owner) == (owner_of("alice", organization), named)


def test_keys_are_random_and_kept_as_hashes() -> None:
    keys = [new_api_key() for _ in range(50)]
    random_parts = [key.removeprefix(PREFIX) for key in keys]
    assert len(set(keys)) == 50 and all(key == PREFIX + part for key, part in zip(keys, random_parts, strict=True))
    assert all(len(part) == 43 for part in random_parts), "32 bytes in base64"
    assert set("".join(random_parts)) <= set(string.ascii_letters + string.digits + "-_")
    assert hash_api_key(keys[0]) == hashlib.sha256(keys[0].encode()).hexdigest() != hash_api_key(keys[1])
    assert key_hint(keys[0]) == keys[0][-4:]


def test_times_are_shown_in_utc() -> None:
    assert shown_time(1_796_040_000) == "2026-11-30 12:00 UTC"

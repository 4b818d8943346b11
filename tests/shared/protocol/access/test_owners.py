"""Whose things are: no two owners are written alike, and records of before there were any are read."""

from hypothesis import given
from hypothesis import strategies as st

from shared.protocol.access.api_keys import ApiKeyRecord
from shared.protocol.access.owners import owner_of
from shared.protocol.codec import decode_record
from shared.protocol.offline.batches import FileRecord

NAMES = st.sampled_from(["a", "name-a", "organization-a", "organization-name-a", "key-1"]) | st.from_regex(
    r"[A-Za-z0-9_-]{1,64}", fullmatch=True
)


@given(NAMES, NAMES, NAMES)
def test_a_key_and_an_organization_are_never_one_owner(key: str, organization: str, other: str) -> None:
    assert owner_of(key) != owner_of(other, organization) == owner_of(key, organization)
    assert (owner_of(key) == owner_of(other)) is (key == other)
    assert (owner_of(key, organization) == owner_of(key, other)) is (organization == other)
    assert owner_of("") == "" != owner_of(key)


def test_records_of_before_have_no_organization_no_quota_and_no_owner() -> None:
    key = decode_record(b'{"name": "alice", "key_hash": "h", "hint": "abcd", "created_at": 1}', ApiKeyRecord)
    assert (key.organization, key.owner, key.permits("admin")) == (None, "name-alice", True)
    assert {key.max_stored_bytes, key.max_open_batches, key.max_queued_tokens} == {None}
    file = b'{"id": "file-1", "bytes": 3, "created_at": 1, "filename": "a", "purpose": "batch"}'
    assert decode_record(file, FileRecord).owner == ""

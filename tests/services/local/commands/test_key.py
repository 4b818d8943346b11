"""``slackwater key`` with organizations and quotas."""

import json
from pathlib import Path

import pytest

from tests.services.gateway.access.test_api_keys import key_command

TERMS = ("--organization", "acme", "--max-stored-bytes", "1000000", "--max-open-batches", "5")


def listed(data_dir: Path) -> dict[str, dict[str, object]]:
    return {each["name"]: each for each in json.loads(key_command("list", "--json", data_dir=data_dir)[1])}


@pytest.mark.parametrize("width", ["80", "200"])
def test_organization_and_quotas_are_made_shown_and_changed(
    tmp_path: Path, width: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    assert key_command("create", "alice", *TERMS, "--max-queued-tokens", "20000", data_dir=tmp_path)[0] == 0
    shown = listed(tmp_path)["alice"]
    assert shown["organization"] == "acme" and "admin" not in str(shown["endpoints"])
    assert [shown[f"max_{name}"] for name in ("stored_bytes", "open_batches", "queued_tokens")] == [10**6, 5, 20_000]
    words = " ".join(key_command("list", data_dir=tmp_path)[1].split())
    for told in ("all but admin;", "for acme", "1,000,000", "stored bytes", "5 open batches", "20,000 queued"):
        assert all(word in words for word in told.split()), told
    change = ("change", "alice", "--organization", "none", "--max-stored-bytes", "0", "--max-open-batches", "6")
    assert key_command(*change, data_dir=tmp_path)[0] == 0
    shown = listed(tmp_path)["alice"]
    assert (shown["organization"], shown["max_stored_bytes"], shown["max_open_batches"]) == (None, None, 6)
    assert shown["max_queued_tokens"] == 20_000


def test_a_new_key_is_an_admin_only_where_that_is_said(tmp_path: Path) -> None:
    status, key, told = key_command("create", "user", data_dir=tmp_path)
    assert status == 0 and key.startswith("sk-") and 'require_keys = "always"' in told
    assert key_command("create", "operator", "--endpoints", "all", data_dir=tmp_path)[0] == 0
    shown = listed(tmp_path)
    assert "admin" not in str(shown["user"]["endpoints"]) and shown["operator"]["endpoints"] is None


def test_no_key_has_the_name_of_the_gateways_own(tmp_path: Path) -> None:
    """It would have all that was made with that one, an admin's."""
    status, key, told = key_command("create", "environment", data_dir=tmp_path)
    assert (status, key) == (1, "") and "'environment' is the key in SLACKWATER_API_KEY" in told
    assert listed(tmp_path) == {}


@pytest.mark.parametrize("command", [("list",), ("usage",), ("revoke", "alice"), ("change", "alice", "--weight", "2")])
def test_a_folder_without_a_store_is_not_taken_for_one_without_keys(tmp_path: Path, command: tuple[str, ...]) -> None:
    """Who is in the wrong folder is told so, and nothing is made there."""
    status, shown, error = key_command(*command, data_dir=tmp_path / "data")
    assert (status, shown) == (1, "") and f"no stack has ever run in {tmp_path / 'data'}" in error
    assert "--data-dir" in error and list(tmp_path.iterdir()) == []


def test_the_usage_of_a_key_that_never_was_is_none_to_be_told(tmp_path: Path) -> None:
    assert key_command("create", "alice", data_dir=tmp_path)[0] == 0
    status, shown, error = key_command("usage", "alise", data_dir=tmp_path)
    assert (status, shown) == (1, "") and "there is no key 'alise'" in error
    for name in ("alice", "environment"):
        assert key_command("usage", name, data_dir=tmp_path)[:2] == (0, "no tokens were used by keys in these days\n")


@pytest.mark.parametrize("name", ["", "two words", "a.b", "x" * 65, "é"])
def test_an_organizations_name_is_as_a_keys(tmp_path: Path, name: str) -> None:
    status, _, error = key_command("create", "alice", "--organization", name, data_dir=tmp_path)
    assert status == 2 and "Invalid value for --organization" in error

"""``slackwater bus``."""

import json
import os
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from services.local.cli import app
from services.local.stack.bus_access.certificates import SERVER_DAYS, Signed, is_good_for, new_server, utc_now
from services.local.stack.data_dir import DataDir, StackFile
from services.local.stack.machine import free_port
from shared.bus.permissions import BusRole
from tests.conftest import nats_server_binary

SEEDS = [f"{role}.nk" for role in BusRole]


def slackwater(*args: str) -> Result:
    return CliRunner().invoke(app, ["bus", *args])


def test_init_makes_all_that_server_and_clients_need(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "bus"
    done = slackwater("init", str(folder), "--host", "nats.example", "--host", "10.1.2.3")
    assert done.exit_code == 0, done.stderr
    assert "localhost, 127.0.0.1, nats.example, 10.1.2.3" in done.stdout
    others = ["ca.pem", "ca-key.pem", "server.pem", "server-key.pem", "auth.conf", "accepted.json"]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*SEEDS, *others])
    assert not any(folder.joinpath(name).read_text().strip() in done.stdout for name in SEEDS)
    config = tmp_path / "nats.conf"
    files = f'cert_file: "{folder / "server.pem"}", key_file: "{folder / "server-key.pem"}"'
    config.write_text(f'port: {free_port()}\ninclude "deep/bus/auth.conf"\ntls {{ {files} }}\n')
    checked = subprocess.run([nats_server_binary(), "-t", "-c", str(config)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_a_certificate_that_is_made_anew_is_for_the_names_that_it_had(tmp_path: Path) -> None:
    """Where a name is added, where it is about to end, and where nothing is to be made."""
    assert slackwater("init", str(tmp_path), "--host", "10.0.0.1", "--host", "nats.example").exit_code == 0
    certificate = tmp_path / "server.pem"
    first = certificate.read_bytes()
    assert "localhost, 127.0.0.1, 10.0.0.1, nats.example\n" in slackwater("init", str(tmp_path)).stdout
    assert certificate.read_bytes() == first
    all_hosts = ["localhost", "127.0.0.1", "10.0.0.1", "nats.example", "10.0.0.4"]
    assert ", ".join(all_hosts) in slackwater("init", str(tmp_path), "--host", "10.0.0.4").stdout
    signer = Signed((tmp_path / "ca.pem").read_bytes(), (tmp_path / "ca-key.pem").read_bytes())
    old = new_server(signer, all_hosts, utc_now() - timedelta(days=SERVER_DAYS))
    certificate.write_bytes(old.certificate)
    assert slackwater("init", str(tmp_path)).exit_code == 0
    assert certificate.read_bytes() != old.certificate
    assert is_good_for(certificate.read_bytes(), all_hosts, utc_now())


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    failed = slackwater("init", str(tmp_path / "file" / "bus"))
    assert failed.exit_code == 1 and "cannot keep the bus's credentials in" in failed.stderr


def test_keys_are_replaced_in_two_turns(tmp_path: Path) -> None:
    assert slackwater("init", str(tmp_path)).exit_code == 0
    before = {name: (tmp_path / name).read_text() for name in SEEDS}
    old = json.loads((tmp_path / "accepted.json").read_text())
    assert slackwater("rotate", str(tmp_path)).exit_code == 0
    both = json.loads((tmp_path / "accepted.json").read_text())
    assert all(set(old[role]) < set(both[role]) and len(both[role]) == 2 for role in BusRole)
    assert all(key in (tmp_path / "auth.conf").read_text() for role in BusRole for key in both[role])
    assert not any((tmp_path / name).read_text() == before[name] for name in SEEDS)
    assert slackwater("rotate", str(tmp_path), "--finish").exit_code == 0
    after = json.loads((tmp_path / "accepted.json").read_text())
    assert {role: [*old[role], *after[role]] for role in after} == both
    assert not any(key in (tmp_path / "auth.conf").read_text() for role in BusRole for key in old[role])


def test_what_cannot_be_rotated_is_named(tmp_path: Path) -> None:
    failed = slackwater("rotate", str(tmp_path))
    assert failed.exit_code == 1 and "is none of slackwater bus init" in failed.stderr
    failed = slackwater("rotate", "--data-dir", str(tmp_path))
    assert failed.exit_code == 1 and "no stack runs in" in failed.stderr
    elsewhere = StackFile(os.getpid(), "tls://bob:hunter2@far:4222", "http://127.0.0.1:1", "m", "sim", True, {})
    data_dir = DataDir(tmp_path)
    with data_dir.locked():
        data_dir.write_stack(elsewhere)
        failed = slackwater("rotate", "--data-dir", str(tmp_path))
    assert failed.exit_code == 1 and "stack, tls://far:4222, is not its own" in failed.stderr


@pytest.mark.parametrize("role", BusRole)
def test_roles_are_shown_with_their_subjects(role: BusRole) -> None:
    shown = json.loads(slackwater("roles", "--json").stdout)
    assert "_INBOX.>" in shown[role]["publish"] and f"_INBOX.{role}.>" in shown[role]["subscribe"]
    told = slackwater("roles").stdout
    assert f" {role} " in told and all(subject in told for subject in shown[role]["publish"]), "a pipe has whole lines"

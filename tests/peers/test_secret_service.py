"""The keyring source against a real Secret Service (GNOME keyring)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.flow.test_main_job import profile
from tests.worlds.service import CANARY

pytestmark = pytest.mark.flow


def put(environ, value, user="api"):
    """Store as an operator would, with the keyring's own command."""
    done = subprocess.run(
        [sys.executable, "-m", "keyring", "set", "minter", user],
        input=value.encode(),
        env=environ | {"PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def prepared(service, api, environ):
    service.environ = environ
    service.prepare({"api": profile(api)})
    settings = service.root / "minter.toml"
    settings.write_text(settings.read_text().replace('"file:secrets/api.key"', '"keyring:minter/api"'))
    (service.root / "secrets/api.key").unlink()


def test_a_key_in_the_keyring_is_lent_rotated_and_then_gone_from_its_old_place(service, api, secret_service):
    api.on("GET", "/v1/items")
    prepared(service, api, secret_service)
    put(secret_service, CANARY)
    service.start()
    assert service.call(service.open_run(), "GET", "/v1/items").status == 200
    assert api.received[-1].header("authorization") == f"Bearer {CANARY}"
    service.run("minter", "rotate", "api", stdin=b"the-next-value-of-the-key\n")
    assert service.call(service.open_run(), "GET", "/v1/items").status == 200
    assert api.received[-1].header("authorization") == "Bearer the-next-value-of-the-key"
    service.run("minter", "rotate", "api", "--finish")
    kept = subprocess.run(
        [sys.executable, "-m", "keyring", "get", "minter", "api"],
        env=secret_service | {"PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=False,
    )
    assert CANARY.encode() not in kept.stdout
    # The new value outlives the process: it was read back from the keyring, not only from memory.
    service.stop("minter")
    service.start("minter")
    service.until(lambda: service.call(service.open_run(), "GET", "/v1/items").status == 200, "the minter serves again")
    assert api.received[-1].header("authorization") == "Bearer the-next-value-of-the-key"


def test_a_key_that_is_not_in_the_keyring_stops_the_start_and_is_named(service, api, secret_service):
    prepared(service, api, secret_service)
    done = service.run("minter", "serve", "--config", "minter.toml", check=False)
    assert done.returncode == 3
    assert b"keyring:minter/api" in done.stderr


def test_a_state_whose_sealing_key_is_in_the_keyring_opens_after_a_rotation_and_not_without_it(
    service, api, secret_service
):
    api.on("GET", "/v1/items")
    prepared(service, api, secret_service)
    put(secret_service, CANARY)
    settings = service.root / "minter.toml"
    sealing = '\n[keys.sealing-key]\nuse = "sealing"\nsource = "keyring:minter/sealing-key"\n'
    settings.write_text(settings.read_text() + sealing)
    service.start()
    run = service.open_run()
    assert service.call(run, "GET", "/v1/items").status == 200
    assert not list(service.root.rglob("sealing.key*"))
    service.run("minter", "rotate", "sealing-key")
    service.run("minter", "rotate", "sealing-key", "--finish")
    service.stop("minter")
    service.start("minter")
    service.until(lambda: service.call(run, "GET", "/v1/items").status == 200, "the lease is handed out again")
    service.stop("minter")
    for user in ("sealing-key", "sealing-key.v2"):
        subprocess.run(
            [sys.executable, "-m", "keyring", "del", "minter", user],
            env=secret_service | {"PATH": "/usr/bin:/bin"},
            capture_output=True,
            check=False,
        )
    done = service.run("minter", "serve", "--config", "minter.toml", check=False)
    assert done.returncode == 3
    assert b"sealing-key" in done.stderr
    assert b"second copy" in done.stderr

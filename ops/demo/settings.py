"""What the demo's two programs are told: the operator's grants pointed at the fake API, and their settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

ACCOUNT: Final = "00000000000000000000000000000042"
NAMESPACE: Final = "support-agent"
CALLER: Final = "support-agent"
PROFILE: Final = "agent-memory"
JWT_PROFILE: Final = "agent-memory-jwt"
KEYRING_ENTRY: Final = "minter/agent-memory"

#: Where specgen's files are. The grants among them are the operator's: specgen wrote them, and ``allow`` was filled in.
FOLDER: Final = Path(__file__).parent / "agent-memory"
GRANTS: Final = FOLDER / "grants.json"
CLIENTS: Final = ("client.py", "client.js")
_PROFILE: Final[dict[str, Any]] = json.loads(GRANTS.read_text())["profiles"][PROFILE]
ALLOW: Final[tuple[str, ...]] = tuple(_PROFILE["allow"])
CATALOG: Final[tuple[str | dict[str, Any], ...]] = tuple(_PROFILE["catalog"])


def grants_json(api_url: str) -> str:
    """Return the operator's grants with the fake's origin, and a second profile whose tokens the minter makes."""
    common = _PROFILE | {"base_url": api_url}
    own = {"type": "jwt", "key": "run-signer", "audience": api_url}
    return json.dumps({"profiles": {PROFILE: common, JWT_PROFILE: common | {"token": own}}}, indent=2)


def minter_toml(folder: Path, *, url: str, key_fd: int, signer_fd: int, socket_group: str) -> str:
    """Return the minter's settings. Both keys come from inherited pipes: in no file and in no environment."""
    return f"""\
listen = ["unix:{folder}/run/minter.sock"]
socket_group = "{socket_group}"
admin_listen = ["unix:admin/minter-admin.sock"]
public_listen = ["{url.removeprefix("http://")}"]
issuer = "{url}"
grants = "{folder}/grants.json"
brokers = "brokers.json"
state = "sqlite:state/minter.db"
audit = "state/audit.jsonl"
operator_uids = [0]

[keys.agent-memory]
source = "fd:{key_fd}"
owner = "the demo"
purpose = "calls of the support agent"

[keys.run-signer]
use = "signing"
source = "fd:{signer_fd}"
owner = "the demo"
purpose = "signs tokens for one run"
"""


def broker_toml(folder: Path, *, url: str, credential_fd: int) -> str:
    """Return the broker's settings. Its credential to the minter comes from an inherited pipe too."""
    return f"""\
listen = ["{url.removeprefix("http://")}"]
grants = "{folder}/grants.json"
callers = "callers.json"
minter = "unix:{folder}/run/minter.sock"
minter_credential = "fd:{credential_fd}"
state = "sqlite:state/broker.db"
admin_listen = ["unix:admin/broker-admin.sock"]
operator_uids = [0]
"""

"""What the demo's two programs are told: the grants of the seed pointed at the fake API, and their settings."""

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

_N: Final = "/client/v4/accounts/*/agent-memory/namespaces"
_P: Final = _N + "/*/profiles/*"
_OWN: Final = f"/client/v4/accounts/{ACCOUNT}/agent-memory/namespaces/{NAMESPACE}/profiles/customer-42"

ALLOW: Final = (f"POST {_OWN}/remember", f"POST {_OWN}/recall", f"GET {_OWN}/memories/*")
CATALOG: Final = (
    f"GET {_N}",
    f"POST {_N}",
    f"DELETE {_N}/*",
    f"GET {_N}/*",
    f"GET {_N}/*/profiles",
    f"DELETE {_P}",
    f"POST {_P}/ingest",
    f"GET {_P}/memories",
    f"DELETE {_P}/memories/*",
    f"GET {_P}/memories/*",
    f"POST {_P}/recall",
    f"POST {_P}/remember",
    f"DELETE {_P}/sessions/*",
    f"POST {_P}/summary",
)


def grants_json(api_url: str) -> str:
    """Return the grants: one profile whose key the minter holds, one whose tokens the minter makes itself."""
    common: dict[str, Any] = {
        "base_url": api_url,
        "allowed_callers": [CALLER],
        "allow": list(ALLOW),
        "catalog": list(CATALOG),
    }
    own = {"type": "jwt", "key": "run-signer", "audience": api_url}
    profiles = {
        PROFILE: common | {"token": {"type": "static", "key": "agent-memory"}},
        JWT_PROFILE: common | {"token": own},
    }
    return json.dumps({"profiles": profiles}, indent=2)


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

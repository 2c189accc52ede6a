"""The request that the README shows before and after the broker is the one that is sent."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.broker.calling import KEY, profile, world

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


async def test_the_api_receives_what_the_readme_says_it_receives(tmp_path):
    before, after = re.findall(r"```http\n(.*?)\n```", README, re.DOTALL)
    [grants] = re.findall(r"```json\n(.*?)\n```", README, re.DOTALL)
    written = json.loads(grants)["profiles"]["agent-memory"]
    async with world(tmp_path) as w:
        granted = profile(w.api.url) | {name: written[name] for name in ("params", "allow")}
        w.token = w.open_run({"agent-memory": granted}, {"customer": "acme"})
        sent = before.replace("brk_QWfH...", w.token).replace("127.0.0.1:8090", f"127.0.0.1:{w.port}")
        assert (await w.raw(sent.replace("\n", "\r\n").encode())).status == 200
        [request] = w.api.requests
        expected = after.replace("<the credential>", KEY).replace("api.cloudflare.com", f"127.0.0.1:{w.api.port}")
        assert _parts(request.raw.decode().replace("\r\n", "\n")) == _parts(expected)


def _parts(text: str) -> tuple[str, list[str], str]:
    head, _, body = text.partition("\n\n")
    line, *headers = head.split("\n")
    return line, [f"{name.lower()}:{value}" for name, _, value in (each.partition(":") for each in headers)], body

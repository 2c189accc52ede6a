"""Runs the JavaScript of a run, in a process of its own: an engine that has a host function and nothing else.

    python -m ops.demo.engine CLIENT.js CODE.js

``BROKER_URL`` and ``BROKER_RUN_TOKEN`` come from the environment and stay on this side: the host function takes and
gives JSON text, and hands it to the broker as it is. The engine has no files, no network, no environment, no clock of
ours; what the code prints goes through a list that the engine holds. Memory, stack and processor time are bounded.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import Final

import quickjs

from config.process import harden
from ops.demo.programs import call

#: The name of the host function, which the generated client looks for.
HOST_FUNCTION: Final = "__broker_host_call"
_MEMORY: Final = 64 << 20
_STACK: Final = 1 << 20
_SECONDS: Final = 20
# The engine has no console: this is one, in its own language.
_PRINT: Final = """
var print = function () { print.lines.push(Array.prototype.map.call(arguments, String).join(" ")); };
print.lines = [];
"""


def main(client: str, code: str) -> int:
    """Run the code after the client, and write what it printed."""
    harden()
    # The engine's own limit of time cannot be had together with a host function.
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    context = quickjs.Context()
    context.set_memory_limit(_MEMORY)
    context.set_max_stack_size(_STACK)
    context.add_callable(HOST_FUNCTION, host_call)
    status = 0
    try:
        for source in (_PRINT, Path(client).read_text(), Path(code).read_text()):
            context.eval(source)
        while context.execute_pending_job():
            pass
    except quickjs.JSException as error:
        status = 1
        sys.stderr.write(f"{error}\n")
    print(context.eval('print.lines.join("\\n")'))
    return status


def host_call(text: str) -> str:
    """Hand one call to the broker and return its answer, both as the JSON text that they are."""
    url, token = os.environ["BROKER_URL"], os.environ["BROKER_RUN_TOKEN"]
    status, answer = call("POST", url + "/v1/call", token=token, body=text.encode(errors="replace"))
    said = answer.decode(errors="replace")
    # What was no call at all is refused as such, in the same shape for the code.
    refused = {"status": status, "content_type": "application/problem+json", "body": said}
    return said if status == 200 else json.dumps(refused)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))

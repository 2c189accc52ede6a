"""What config/http_*.py use of uvicorn beyond its documented surface. When this fails, read that code again.

uvicorn is pinned; a new version is taken together with a look at these.
"""

from __future__ import annotations

import ast
import inspect
import textwrap

import uvicorn
from uvicorn.protocols.http import flow_control, httptools_impl
from uvicorn.server import Server, ServerState

Base = httptools_impl.HttpToolsProtocol


def assigned(function) -> set[str]:
    """Return the attributes of self that a method sets."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def used(function) -> set[str]:
    """Return the attributes of self that a method reads or calls."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }


def test_the_version_is_the_one_that_was_read():
    assert uvicorn.__version__.startswith("0.54.")


def test_a_connection_has_the_state_that_is_relied_on():
    assert list(inspect.signature(Base.__init__).parameters) == [
        "self", "config", "server_state", "app_state", "_loop",
    ]  # fmt: skip
    assert {
        "app", "parser", "connections", "tasks", "transport", "flow", "server", "client", "scheme", "pipeline",
        "server_state", "headers", "expect_100_continue", "cycle",
    } <= assigned(Base.__init__)  # fmt: skip


def test_no_method_of_a_connection_is_new_to_us():
    known = {
        "connection_made", "connection_lost", "eof_received", "data_received", "on_message_begin", "on_url",
        "on_header", "on_headers_complete", "on_body", "on_message_complete", "on_response_complete", "shutdown",
        "pause_writing", "resume_writing", "_start_asgi_task",
        # not reached: the keep-alive timer is never set, upgrades are refused before, errors are answered by us
        "timeout_keep_alive_handler", "_unset_keepalive_if_required", "_get_upgrade", "_should_upgrade_to_ws",
        "_unsupported_upgrade_warning", "_should_upgrade", "handle_websocket_upgrade", "send_400_response",
        "__init__",
    }  # fmt: skip
    assert {name for name, value in vars(Base).items() if inspect.isfunction(value)} == known


def test_what_is_called_of_the_base_touches_only_what_was_read():
    assert used(Base.connection_lost) == {
        "connections", "logger", "client", "cycle", "flow", "transport", "_unset_keepalive_if_required", "parser",
    }  # fmt: skip
    assert used(Base.pause_writing) == used(Base.resume_writing) == {"flow"}
    assert used(Base._start_asgi_task) == {"config", "loop", "tasks"}


def test_a_cycles_receive_needs_only_what_ours_sets():
    from config.http_cycle import Cycle

    needed = used(httptools_impl.RequestResponseCycle.receive)
    assert needed == {
        "waiting_for_100_continue", "transport", "disconnected", "response_complete", "flow", "message_event", "body",
        "more_body",
    }  # fmt: skip
    assert needed <= assigned(Cycle.__init__)


def test_flow_control_is_what_it_was():
    assert flow_control.HIGH_WATER_LIMIT == 65536
    assert {name for name, value in vars(flow_control.FlowControl).items() if inspect.isfunction(value)} == {
        "__init__", "drain", "pause_reading", "resume_reading", "pause_writing", "resume_writing",
    }  # fmt: skip
    assert "read_paused" in assigned(flow_control.FlowControl.__init__)


def test_a_server_runs_its_steps_in_the_order_that_is_relied_on():
    source = inspect.getsource(Server._serve)
    steps = ["self.startup(", "self.main_loop(", "self.shutdown("]
    assert sorted(steps, key=source.index) == steps
    assert used(Server.serve) == {"capture_signals", "_serve"}
    assert "on_tick" in used(Server.main_loop)
    assert {"default_headers", "connections", "tasks", "total_requests"} <= assigned(ServerState.__init__)

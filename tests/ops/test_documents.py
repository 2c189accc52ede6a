"""The documents keep up with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from config.errors import ExitCode
from config.problems import PROBLEMS

ROOT = Path(__file__).resolve().parents[2]
MAP = (ROOT / "ops/flow.md").read_text()
MODULES = sorted(
    str(path.relative_to(ROOT))
    for package in ("config", "minter", "broker")
    for path in (ROOT / package).rglob("*.py")
    if path.name != "__init__.py"
)


@pytest.mark.parametrize("module", MODULES)
def test_every_module_is_on_the_map(module):
    folder = "/".join(module.split("/")[:2]) + "/"
    assert f"`{module}`" in MAP or f"`{folder}`" in MAP


def test_everything_on_the_map_exists():
    named = re.findall(r"`((?:config|minter|broker|ops|tests)/[^` ]*)`", MAP)
    assert len(named) > 100
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("document", ["README.md", "SECURITY.md", "CONTRIBUTING.md", "ops/security-model.md"])
def test_links_between_documents_lead_somewhere(document):
    path = ROOT / document
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_every_promise_of_the_security_model_names_a_test_that_exists():
    named = re.findall(r"`(tests/[^`]+?)(?:::([^`]+))?`", (ROOT / "ops/security-model.md").read_text())
    assert len(named) > 15
    for file, test in named:
        assert (ROOT / file).exists(), file
        assert not test or f"def {test}" in (ROOT / file).read_text(), test


def test_every_problem_code_is_raised_somewhere():
    source = "\n".join((ROOT / module).read_text() for module in MODULES if not module.endswith("config/problems.py"))
    assert [code for code in PROBLEMS if f'"{code}"' not in source] == []


def test_the_readme_names_every_exit_status():
    text = re.sub(r"\s+", " ", (ROOT / "README.md").read_text())
    listed = re.findall(r"(\d+) [a-z]", text.partition("Exit status: ")[2].partition(".")[0])
    assert {int(status) for status in listed} == {v for k, v in vars(ExitCode).items() if k.isupper()}

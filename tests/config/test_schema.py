from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema

from config import schema
from config.grantsfile import ProfileSource

ROOT = Path(__file__).parents[2]
SEED = json.loads((Path(__file__).parent / "seed_grants.json").read_text())


def test_the_schema_in_the_tree_is_the_one_that_the_types_make():
    assert (ROOT / "config/grants.schema.json").read_text() == schema.text()


def test_the_module_prints_it():
    done = subprocess.run([sys.executable, "-m", "config.schema"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == schema.text()


def test_it_is_a_valid_schema_that_takes_the_seed_and_describes_every_field():
    jsonschema.Draft202012Validator.check_schema(schema.grants_schema())
    jsonschema.Draft202012Validator(schema.grants_schema()).validate(SEED)
    properties = schema.grants_schema()["$defs"]["ProfileSource"]["properties"]
    assert set(properties) == set(ProfileSource.__struct_encode_fields__)
    assert all("description" in field for field in properties.values())

"""Search for the key, and for a way to get it, in everything the code can reach."""

import json
from pathlib import Path

import client
import search

# What a well-informed attacker knows: where things are and what they look like. No secret is in it.
told = json.loads(Path("told.json").read_text())
search.run(told, client)

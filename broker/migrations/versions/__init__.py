"""One file a change. They are never edited after a release."""

"""The demo: the main job on real input, with both programs as real processes and claims counted from what happened."""


class DemoError(Exception):
    """The demo cannot go on: a program did not start, or does not answer."""

"""The demo: the main job on real input, with both programs as real processes and claims counted from what happened."""

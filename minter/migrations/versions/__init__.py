"""One file a change; its revision is the number in its name."""

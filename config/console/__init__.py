"""The half of both command lines that is the same: commands, messages, token files, doctor.

Only ``minter/cli``, ``broker/cli`` and what they alone use import it; a running service never does. It speaks to a
terminal and looks at files, so the rule that ``config/`` does no I/O ends at its door.
"""

"""What both programs share: grants, routes, placements, settings, messages, problem codes, and how a program listens.

Rules of this package, enforced by ``tests/test_architecture.py``:

1. Importing it does nothing.
2. Only ``load.py`` and ``server.py`` (its parts are ``http_*.py``) do I/O; ``console/`` is for the command lines.
3. It never holds the value of a secret: the type :class:`config.secret.Secret` stands here, values do not.
4. It imports neither ``minter`` nor ``broker``.
"""

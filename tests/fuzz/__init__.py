"""What hostile bytes may not do: one module a target, each with ``one_input(data)``, ``SEEDS`` and ``TOKENS``.

``one_input`` raises when an invariant does not hold, whatever the bytes. Most invariants compare with something that
knows nothing of our code: a reference written from the rules, or another parser.

- ``make test`` tries the seeds and some hundreds of mixtures of them (``test_targets.py``), so that no target rots.
- ``make fuzz`` runs each target for ten minutes (``FUZZ_SECONDS``), guided by coverage (atheris). What it found
  interesting stays in ``.fuzz/NAME/``, and an input that fails is written there: it belongs into the ``SEEDS``.
- ``python -m tests.fuzz NAME FILE`` tries one such input again.
"""

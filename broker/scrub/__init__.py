"""Keeping an attached credential out of answers (``scrub`` of a profile).

``forms.py`` knows how a secret is usually written when it comes back, ``needles.py`` finds and masks those forms,
``stream.py`` does that to a body that comes in pieces, ``coding.py`` opens compressed bodies for it.

What it cannot do: an API that transforms a secret in another way, or splits it, gets it past.
"""

from __future__ import annotations

from broker.scrub.coding import Decoder, decoder_for
from broker.scrub.needles import Needles
from broker.scrub.stream import Stream

__all__ = ["Decoder", "Needles", "Stream", "decoder_for"]

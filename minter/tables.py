"""The minter's tables (SQLAlchemy Core). The migrations under ``minter/migrations`` are written from them.

Instants are seconds since the epoch in ``*_at`` columns. JSON stands as text that msgspec wrote, so that reading
a row costs no parsing nobody asked for. No column holds a secret in the clear: values are sealed (minter/sealing.py)
and name the data key that opens them.
Two rules that a programming mistake must not be able to break are indexes here: one live lease per (broker, run,
profile), and one active and one prepared version per custody key.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    Column,
    ColumnElement,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _where(condition: str) -> dict[str, ColumnElement[bool]]:
    clause = text(condition)
    return {"sqlite_where": clause, "postgresql_where": clause}  # type: ignore[dict-item]


#: A lease that was replaced before its end, and is still good.
REPLACED: Final = "state = 'revoking' AND end_reason = 'replaced' AND ended_at IS NULL"

#: Small facts about this installation, by name; binary values stand as hexadecimal text.
#:
#: - ``installation``: its random id; the audit log's first line is bound to it
#: - ``highest_wall``: the highest wall time seen, in seconds since the epoch
#: - ``quarantine``: since when, in seconds since the epoch; there only while a restored state is not confirmed
meta = Table(
    "meta",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

#: ``state``: intent, active, revoking, revoked, expired, orphan_suspect or irrevocable (DESIGN section 7).
#: ``how``: how one that is over ended; of one that is irrevocable, what stands in the way (``kind-missing``,
#: ``refused``, ``failing``); of a suspect, ``not-found`` once nothing was found at the issuer.
leases = Table(
    "leases",
    metadata,
    Column("id", Text, primary_key=True),
    Column("broker", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("caller", Text, nullable=False),
    Column("profile", Text, nullable=False),
    Column("params_digest", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("grant_digest", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("how", Text, nullable=False, server_default=""),
    Column("fingerprint", Text, nullable=False, server_default=""),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
    Column("boot_expires_at", Float, nullable=False),
    Column("boot_id", Text, nullable=False),
    Column("run_ends_at", Float, nullable=False),
    # When the issuer's own expiry ends the credential; none when it ends at no time by itself (a static key).
    Column("credential_ends_at", Float),
    # The first custody key that the credential was made with; none for a kind that uses no key.
    Column("key_alias", Text),
    Column("key_version", Integer),
    # JSON list of all of them, "alias@version": a credential of several fields may have several.
    Column("key_versions", Text, nullable=False, server_default="[]"),
    # JSON of the token object as it was granted: a lease stays revocable when its profile is gone.
    Column("token", Text, nullable=False),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("next_attempt_at", Float),
    Column("ended_at", Float),
    Column("end_reason", Text, nullable=False, server_default=""),
    Column("trace_id", Text),
    # The credential, sealed, as long as anybody may need it: none once the lease has ended.
    Column("data_key", Integer),
    Column("sealed", LargeBinary),
    Index("ix_leases_state_expires_at", "state", "expires_at"),
    # What ends next by either clock, and whose revocation is due next: asked at every tick.
    Index("ix_leases_boot", "boot_id", "boot_expires_at", **_where("state = 'active'")),  # type: ignore[arg-type]
    Index("ix_leases_next_attempt_at", "next_attempt_at", **_where("next_attempt_at IS NOT NULL")),  # type: ignore[arg-type]
    # The same by kind and profile, which take turns; and what makes room for a successor and is good until its end.
    Index("ix_leases_turns", "kind", "profile", "next_attempt_at", **_where("next_attempt_at IS NOT NULL")),  # type: ignore[arg-type]
    Index("ix_leases_replaced", "expires_at", **_where(REPLACED)),  # type: ignore[arg-type]
    Index("ix_leases_key", "key_alias", "key_version", "state"),
    Index("ix_leases_run", "run_id"),
    # Which values a data key that goes away still has to be replaced for.
    Index("ix_leases_data_key", "data_key", **_where("data_key IS NOT NULL")),  # type: ignore[arg-type]
    Index(
        "uq_leases_live",
        "broker",
        "run_id",
        "profile",
        unique=True,
        **_where("state IN ('intent', 'active')"),  # type: ignore[arg-type]
    ),
)

#: One row for each alias that was ever loaded; ``origins`` is a JSON list, the pins. ``settings`` is JSON of what an
#: operator said of a key that the settings do not name, else empty. A key with a ``retired_at`` is not loaded.
custody_keys = Table(
    "custody_keys",
    metadata,
    Column("alias", Text, primary_key=True),
    Column("purpose", Text, nullable=False, server_default=""),
    Column("owner", Text, nullable=False, server_default=""),
    Column("origins", Text, nullable=False, server_default="[]"),
    Column("created_at", Float, nullable=False),
    Column("last_used_at", Float),
    Column("last_rotated_at", Float),
    Column("uses", Integer, nullable=False, server_default="0"),
    Column("settings", Text, nullable=False, server_default=""),
    Column("retired_at", Float),
)

#: Who used a key, as brokers report it.
key_users = Table(
    "key_users",
    metadata,
    Column("alias", Text, ForeignKey("custody_keys.alias"), nullable=False),
    Column("caller", Text, nullable=False),
    Column("broker", Text, nullable=False),
    Column("uses", Integer, nullable=False),
    Column("first_used_at", Float, nullable=False),
    Column("last_used_at", Float, nullable=False),
    PrimaryKeyConstraint("alias", "caller", "broker"),
)

#: ``phase``: prepared, active, retiring or destroyed. ``retire_at``: when a retiring version's last token has ended.
#: ``problem``: why its last step failed, as a short word, until it succeeds. ``made_by``: ``issuer`` when the issuer
#: made it at the minter's request, else empty.
key_versions = Table(
    "key_versions",
    metadata,
    Column("alias", Text, ForeignKey("custody_keys.alias"), nullable=False),
    Column("version", Integer, nullable=False),
    Column("phase", Text, nullable=False),
    Column("source_ref", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("algorithm", Text, nullable=False, server_default=""),
    Column("public_jwk", Text),
    Column("created_at", Float, nullable=False),
    Column("published_at", Float),
    Column("activated_at", Float),
    Column("retire_at", Float),
    Column("destroyed_at", Float),
    Column("problem", Text, nullable=False, server_default=""),
    Column("made_by", Text, nullable=False, server_default=""),
    PrimaryKeyConstraint("alias", "version"),
    Index("uq_key_versions_active", "alias", unique=True, **_where("phase = 'active'")),  # type: ignore[arg-type]
    Index("uq_key_versions_prepared", "alias", unique=True, **_where("phase = 'prepared'")),  # type: ignore[arg-type]
)

#: The keys that values are sealed with, each wrapped by a version of the sealing key. Values of one that is ``old`` are
#: on their way to the ``active`` one; without any left its row is deleted.
data_keys = Table(
    "data_keys",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("phase", Text, nullable=False),
    Column("sealing_version", Integer, nullable=False),
    Column("wrapped", LargeBinary, nullable=False),
    Column("created_at", Float, nullable=False),
    Index("uq_data_keys_active", "phase", unique=True, **_where("phase = 'active'")),  # type: ignore[arg-type]
    sqlite_autoincrement=True,
)

#: Keys that are kept in the state (``sealed:NAME``), by name and version, and this installation's own:
#: ``installation/fingerprint_key`` and ``installation/params_key``, 32 random bytes each, the keys of the HMACs behind
#: fingerprints of static secrets and behind digests of run parameters.
sealed_values = Table(
    "sealed_values",
    metadata,
    Column("name", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("data_key", Integer, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    PrimaryKeyConstraint("name", "version"),
)

#: Events that the audit log is about to be told, written with the rows that they are about and deleted once it has
#: them: JSON of codes and fields for each transaction. ``seq`` is the number of the log's last line before it.
owed_events = Table(
    "owed_events",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("seq", Integer, nullable=False),
    Column("events", Text, nullable=False),
)

#: One row (``id`` 1): the last line of the audit log that the store knows was synced, against truncation.
audit_head = Table(
    "audit_head",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("seq", Integer, nullable=False),
    Column("hash", Text, nullable=False),
    Column("at", Float, nullable=False),
)

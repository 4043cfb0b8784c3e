-- The same tables in both databases, each with its native types. Every key begins with the tenant and
-- the session, so that the data can be partitioned or sharded by session.
-- Tables with large values are ordinary ones: in a table WITHOUT ROWID they would stand in the key's tree,
-- where every search that passes them reads them whole.
-- Times are INTEGER microseconds since 1970 (UTC), ids are 16-byte BLOBs, booleans are 0 or 1.

CREATE TABLE tenants (
    id          INTEGER NOT NULL PRIMARY KEY,
    name        TEXT NOT NULL UNIQUE
) WITHOUT ROWID;

INSERT INTO tenants (id, name) VALUES (1, 'default');

-- document: the agent as it was put, checked against schemas/agent.json.
CREATE TABLE agents (
    tenant_id   INTEGER NOT NULL REFERENCES tenants (id),
    name        TEXT NOT NULL,
    document    TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, name)
);

-- title, model, model_thinking, instance_folder: JSON spelling. agent: the agent's document as it was
-- copied. compaction, pruning, auto_compact: the policies as JSON. tail: the end of the history, which
-- decides how the next message fits.
-- compact_size is the pointer of the contract (a position); compact_seq, compact_length, compact_tokens
-- and compact_bytes say the same place as a seq and as running totals.
-- history_*, tokens, bytes: totals over the messages that have a position.
-- revision rises with every write that can change a context; rewrites with every rewind, reset, restore,
-- edit and erase, never with an append.
CREATE TABLE sessions (
    tenant_id           INTEGER NOT NULL REFERENCES tenants (id),
    id                  BLOB NOT NULL,
    agent_name          TEXT,
    agent               TEXT,
    mode                TEXT NOT NULL,
    status              TEXT NOT NULL,
    title               TEXT,
    model               TEXT,
    model_thinking      TEXT,
    instance_folder     TEXT,
    metadata            TEXT NOT NULL,
    compaction          TEXT NOT NULL,
    pruning             TEXT NOT NULL,
    auto_compact        TEXT NOT NULL,
    compact_summary     TEXT,
    compact_size        INTEGER NOT NULL DEFAULT 0,
    compact_count       INTEGER NOT NULL,
    compaction_version  INTEGER NOT NULL DEFAULT 0,
    compact_seq         INTEGER NOT NULL DEFAULT 0,
    compact_length      INTEGER NOT NULL DEFAULT 0,
    compact_tokens      INTEGER NOT NULL DEFAULT 0,
    compact_bytes       INTEGER NOT NULL DEFAULT 0,
    last_seq            INTEGER NOT NULL DEFAULT 0,
    message_count       INTEGER NOT NULL DEFAULT 0,
    position_count      INTEGER NOT NULL DEFAULT 0,
    history_length      INTEGER NOT NULL DEFAULT 0,
    history_tokens      INTEGER NOT NULL DEFAULT 0,
    history_bytes       INTEGER NOT NULL DEFAULT 0,
    instruction_tokens  INTEGER NOT NULL DEFAULT 0,
    tail                TEXT NOT NULL,
    revision            INTEGER NOT NULL DEFAULT 0,
    rewrites            INTEGER NOT NULL DEFAULT 0,
    created_at          INTEGER NOT NULL,
    updated_at          INTEGER NOT NULL,
    closed_at           INTEGER,
    PRIMARY KEY (tenant_id, id)
);

-- One row a metadata member that can be filtered by; digest: SHA-256 of its name and value.
CREATE TABLE session_metadata (
    tenant_id   INTEGER NOT NULL,
    digest      BLOB NOT NULL,
    session_id  BLOB NOT NULL,
    PRIMARY KEY (tenant_id, digest, session_id),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
) WITHOUT ROWID;

CREATE INDEX session_metadata_by_session ON session_metadata (tenant_id, session_id);

-- body: the bytes as they came, and the last column, so that metadata is read without it.
-- position, and the totals before this message, count only messages that are no instructions.
-- calls: ids and names of an assistant message's calls, as JSON. call_index, tool_name: which call a
-- result answers. fill: results shown before this message for calls that it interrupted.
CREATE TABLE messages (
    tenant_id       INTEGER NOT NULL,
    session_id      BLOB NOT NULL,
    seq             INTEGER NOT NULL,
    position        INTEGER,
    id              TEXT NOT NULL,
    role            TEXT NOT NULL,
    starts_turn     BOOLEAN NOT NULL,
    starts_group    BOOLEAN NOT NULL,
    erased          BOOLEAN NOT NULL DEFAULT FALSE,
    incomplete      BOOLEAN NOT NULL,
    length          INTEGER NOT NULL,
    tokens          INTEGER NOT NULL,
    length_before   INTEGER NOT NULL,
    tokens_before   INTEGER NOT NULL,
    bytes_before    INTEGER NOT NULL,
    call_index      INTEGER,
    tool_name       TEXT,
    created_at      INTEGER NOT NULL,
    body_digest     BLOB NOT NULL,
    content_digest  BLOB NOT NULL,
    calls           TEXT,
    usage           TEXT,
    fill            TEXT,
    body            TEXT NOT NULL,
    PRIMARY KEY (tenant_id, session_id, seq),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
);

CREATE UNIQUE INDEX messages_by_id ON messages (tenant_id, session_id, id);
CREATE INDEX messages_turns ON messages (tenant_id, session_id, seq) WHERE starts_turn;
CREATE INDEX messages_instructions ON messages (tenant_id, session_id, seq) WHERE position IS NULL;

-- The chain. from_position to to_position (exclusive) is the range a version folded in; to_seq is the
-- seq of its last message. digest: SHA-256 of the digest of the version it built on and of the batch's
-- body digests, in order. summary is NULL once its text had to be erased; such a version is never active
-- again. instructions: JSON spelling. parts: calls that were folded into one summary. shortened: messages
-- that were too large for any call and were shown shortened.
CREATE TABLE compactions (
    tenant_id           INTEGER NOT NULL,
    session_id          BLOB NOT NULL,
    version             INTEGER NOT NULL,
    id                  BLOB NOT NULL,
    based_on            INTEGER NOT NULL,
    from_position       INTEGER NOT NULL,
    to_position         INTEGER NOT NULL,
    to_seq              INTEGER NOT NULL,
    digest              BLOB NOT NULL,
    batch_length        INTEGER NOT NULL,
    summary_length      INTEGER NOT NULL,
    summary_tokens      INTEGER NOT NULL,
    compact_count       INTEGER,
    keep_tokens         INTEGER,
    keep_recent_turns   INTEGER NOT NULL,
    boundary            TEXT NOT NULL,
    instructions        TEXT,
    cause               TEXT NOT NULL,
    method              TEXT NOT NULL,
    model               TEXT,
    usage               TEXT,
    parts               INTEGER NOT NULL,
    shortened           INTEGER NOT NULL,
    duration_ms         INTEGER NOT NULL,
    created_at          INTEGER NOT NULL,
    summary             TEXT,
    PRIMARY KEY (tenant_id, session_id, version),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
);

-- Who works on a session: one row a kind of work, taken by whoever finds it absent or expired.
CREATE TABLE leases (
    tenant_id   INTEGER NOT NULL,
    session_id  BLOB NOT NULL,
    kind        TEXT NOT NULL,
    token       BLOB NOT NULL,
    expires_at  INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, session_id, kind),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
) WITHOUT ROWID;

-- The same tables in both databases, each with its native types. Every key begins with the tenant and
-- the session, so that the data can be partitioned or sharded by session.
-- Times have microseconds. Texts that may hold U+0000 are stored in their JSON spelling.

CREATE TABLE tenants (
    id          BIGINT NOT NULL PRIMARY KEY,
    name        TEXT NOT NULL UNIQUE
);

INSERT INTO tenants (id, name) VALUES (1, 'default');

-- document: the agent as it was put, checked against schemas/agent.json.
CREATE TABLE agents (
    tenant_id   BIGINT NOT NULL REFERENCES tenants (id),
    name        TEXT NOT NULL,
    document    TEXT NOT NULL,
    created_at  TIMESTAMPTZ NOT NULL,
    updated_at  TIMESTAMPTZ NOT NULL,
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
    tenant_id           BIGINT NOT NULL REFERENCES tenants (id),
    id                  UUID NOT NULL,
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
    compact_size        BIGINT NOT NULL DEFAULT 0,
    compact_count       BIGINT NOT NULL,
    compaction_version  BIGINT NOT NULL DEFAULT 0,
    compact_seq         BIGINT NOT NULL DEFAULT 0,
    compact_length      BIGINT NOT NULL DEFAULT 0,
    compact_tokens      BIGINT NOT NULL DEFAULT 0,
    compact_bytes       BIGINT NOT NULL DEFAULT 0,
    last_seq            BIGINT NOT NULL DEFAULT 0,
    message_count       BIGINT NOT NULL DEFAULT 0,
    position_count      BIGINT NOT NULL DEFAULT 0,
    history_length      BIGINT NOT NULL DEFAULT 0,
    history_tokens      BIGINT NOT NULL DEFAULT 0,
    history_bytes       BIGINT NOT NULL DEFAULT 0,
    instruction_tokens  BIGINT NOT NULL DEFAULT 0,
    tail                TEXT NOT NULL,
    revision            BIGINT NOT NULL DEFAULT 0,
    rewrites            BIGINT NOT NULL DEFAULT 0,
    created_at          TIMESTAMPTZ NOT NULL,
    updated_at          TIMESTAMPTZ NOT NULL,
    closed_at           TIMESTAMPTZ,
    PRIMARY KEY (tenant_id, id)
);

-- One row a metadata member that can be filtered by; digest: SHA-256 of its name and value.
CREATE TABLE session_metadata (
    tenant_id   BIGINT NOT NULL,
    digest      BYTEA NOT NULL,
    session_id  UUID NOT NULL,
    PRIMARY KEY (tenant_id, digest, session_id),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
);

CREATE INDEX session_metadata_by_session ON session_metadata (tenant_id, session_id);

-- body: the bytes as they came, and the last column, so that metadata is read without it.
-- position, and the totals before this message, count only messages that are no instructions.
-- calls: ids and names of an assistant message's calls, as JSON. call_index, tool_name: which call a
-- result answers. fill: results shown before this message for calls that it interrupted.
CREATE TABLE messages (
    tenant_id       BIGINT NOT NULL,
    session_id      UUID NOT NULL,
    seq             BIGINT NOT NULL,
    position        BIGINT,
    id              TEXT NOT NULL,
    role            TEXT NOT NULL,
    starts_turn     BOOLEAN NOT NULL,
    starts_group    BOOLEAN NOT NULL,
    erased          BOOLEAN NOT NULL DEFAULT FALSE,
    incomplete      BOOLEAN NOT NULL,
    length          BIGINT NOT NULL,
    tokens          BIGINT NOT NULL,
    length_before   BIGINT NOT NULL,
    tokens_before   BIGINT NOT NULL,
    bytes_before    BIGINT NOT NULL,
    call_index      BIGINT,
    tool_name       TEXT,
    created_at      TIMESTAMPTZ NOT NULL,
    body_digest     BYTEA NOT NULL,
    content_digest  BYTEA NOT NULL,
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
    tenant_id           BIGINT NOT NULL,
    session_id          UUID NOT NULL,
    version             BIGINT NOT NULL,
    id                  UUID NOT NULL,
    based_on            BIGINT NOT NULL,
    from_position       BIGINT NOT NULL,
    to_position         BIGINT NOT NULL,
    to_seq              BIGINT NOT NULL,
    digest              BYTEA NOT NULL,
    batch_length        BIGINT NOT NULL,
    summary_length      BIGINT NOT NULL,
    summary_tokens      BIGINT NOT NULL,
    compact_count       BIGINT,
    keep_tokens         BIGINT,
    keep_recent_turns   BIGINT NOT NULL,
    boundary            TEXT NOT NULL,
    instructions        TEXT,
    cause               TEXT NOT NULL,
    method              TEXT NOT NULL,
    model               TEXT,
    usage               TEXT,
    parts               BIGINT NOT NULL,
    shortened           BIGINT NOT NULL,
    duration_ms         BIGINT NOT NULL,
    created_at          TIMESTAMPTZ NOT NULL,
    summary             TEXT,
    PRIMARY KEY (tenant_id, session_id, version),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
);

-- Who works on a session: one row a kind of work, taken by whoever finds it absent or expired.
CREATE TABLE leases (
    tenant_id   BIGINT NOT NULL,
    session_id  UUID NOT NULL,
    kind        TEXT NOT NULL,
    token       UUID NOT NULL,
    expires_at  TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (tenant_id, session_id, kind),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
);

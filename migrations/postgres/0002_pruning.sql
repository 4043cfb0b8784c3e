-- Pruning: the plan, the record of what was dispatched, and what a replay must know of later rewrites.

-- dispatch_count: number of the newest dispatch. plan_dispatch: number of the one that last added to a plan.
-- The rest is counted over all dispatches: tokens that edits kept from being sent, edits made, dispatches that
-- changed the plan, bytes of previous dispatches (as far as there was one) and how many of them the next one
-- began with, calls made again for something elided, elided messages that were read back.
ALTER TABLE sessions ADD COLUMN dispatch_count BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN plan_dispatch BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN tokens_saved BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN elisions BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN plan_changes BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN previous_bytes BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN shared_bytes BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN refetches BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN restores BIGINT NOT NULL DEFAULT 0;

-- The plan of each version of the summary (0: none): which message is shown how. dispatch: the dispatch that
-- added it, 0 if it came with a fork. body_length, body_digest: what it edits. names_seq: the message that its
-- breadcrumb names. arguments: digests of the call's arguments, as a JSON array. tokens: of what is shown;
-- saved_tokens: how many fewer than before. replacement: what is shown, the last column.
CREATE TABLE elisions (
    tenant_id       BIGINT NOT NULL,
    session_id      UUID NOT NULL,
    version         BIGINT NOT NULL,
    seq             BIGINT NOT NULL,
    dispatch        BIGINT NOT NULL,
    rule            TEXT NOT NULL,
    names_seq       BIGINT,
    body_length     BIGINT NOT NULL,
    body_digest     BYTEA NOT NULL,
    tokens          BIGINT NOT NULL,
    saved_tokens    BIGINT NOT NULL,
    arguments       TEXT,
    replacement     TEXT NOT NULL,
    PRIMARY KEY (tenant_id, session_id, version, seq),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
);

-- What was sent, and all it takes to build it again: last_seq, version, plan (edits of dispatches up to this
-- number are applied), carries (user messages behind the pointer are shown), format, renderer. digest: SHA-256 of
-- the messages as sent, joined by commas. bytes: their length. openai_bytes, shared_bytes: length in the
-- chat-completions form, and how much of the previous dispatch it begins with; NULL if there was none.
-- source_breakpoints: indices in the chat-completions form; breakpoints: in the form that was sent.
-- model, parameters, candidates, reasons, both breakpoints: JSON.
CREATE TABLE dispatches (
    tenant_id           BIGINT NOT NULL,
    session_id          UUID NOT NULL,
    n                   BIGINT NOT NULL,
    created_at          TIMESTAMPTZ NOT NULL,
    model               TEXT,
    format              TEXT NOT NULL,
    renderer            BIGINT NOT NULL,
    last_seq            BIGINT NOT NULL,
    rewrites            BIGINT NOT NULL,
    version             BIGINT NOT NULL,
    plan                BIGINT NOT NULL,
    plan_length         BIGINT NOT NULL,
    carries             BOOLEAN NOT NULL,
    messages            BIGINT NOT NULL,
    bytes               BIGINT NOT NULL,
    digest              BYTEA NOT NULL,
    openai_bytes        BIGINT NOT NULL,
    previous_bytes      BIGINT,
    shared_bytes        BIGINT,
    tokens_before       BIGINT NOT NULL,
    tokens_after        BIGINT NOT NULL,
    added               BIGINT NOT NULL,
    refetches           BIGINT NOT NULL,
    fits                BOOLEAN,
    parameters          TEXT NOT NULL,
    candidates          TEXT NOT NULL,
    reasons             TEXT NOT NULL,
    source_breakpoints  TEXT NOT NULL,
    breakpoints         TEXT NOT NULL,
    PRIMARY KEY (tenant_id, session_id, n),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
);

-- Running digests over the newest dispatch, one every `step` bytes: the next one sees where it departs.
CREATE TABLE dispatch_marks (
    tenant_id   BIGINT NOT NULL,
    session_id  UUID NOT NULL,
    n           BIGINT NOT NULL,
    step        BIGINT NOT NULL,
    marks       BYTEA NOT NULL,
    PRIMARY KEY (tenant_id, session_id),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
);

-- What was done to a history, one row a value of sessions.rewrites: `rewound` (everything behind seq is gone),
-- `replaced` and `erased` (the message of that seq). It tells a replay what it can no longer show.
CREATE TABLE rewrites (
    tenant_id   BIGINT NOT NULL,
    session_id  UUID NOT NULL,
    counter     BIGINT NOT NULL,
    kind        TEXT NOT NULL,
    seq         BIGINT NOT NULL,
    message_id  TEXT,
    created_at  TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (tenant_id, session_id, counter),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
);

-- Results shown for interrupted calls are few: whoever counts messages must find them.
CREATE INDEX messages_fills ON messages (tenant_id, session_id, seq) WHERE fill IS NOT NULL;

-- Pruning: the plan, the record of what was dispatched, and what a replay must know of later rewrites.

-- dispatch_count: number of the newest dispatch. plan_dispatch: number of the one that last added to a plan.
-- The rest is counted over all dispatches: tokens that edits kept from being sent, edits made, dispatches that
-- changed the plan, bytes of previous dispatches (as far as there was one) and how many of them the next one
-- began with, calls made again for something elided, elided messages that were read back.
ALTER TABLE sessions ADD COLUMN dispatch_count INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN plan_dispatch INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN tokens_saved INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN elisions INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN plan_changes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN previous_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN shared_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN refetches INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN restores INTEGER NOT NULL DEFAULT 0;

-- The plan of each version of the summary (0: none): which message is shown how. dispatch: the dispatch that
-- added it, 0 if it came with a fork. body_length, body_digest: what it edits. names_seq: the message that its
-- breadcrumb names. arguments: digests of the call's arguments, as a JSON array. tokens: of what is shown;
-- saved_tokens: how many fewer than before. replacement: what is shown, the last column.
CREATE TABLE elisions (
    tenant_id       INTEGER NOT NULL,
    session_id      BLOB NOT NULL,
    version         INTEGER NOT NULL,
    seq             INTEGER NOT NULL,
    dispatch        INTEGER NOT NULL,
    rule            TEXT NOT NULL,
    names_seq       INTEGER,
    body_length     INTEGER NOT NULL,
    body_digest     BLOB NOT NULL,
    tokens          INTEGER NOT NULL,
    saved_tokens    INTEGER NOT NULL,
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
    tenant_id           INTEGER NOT NULL,
    session_id          BLOB NOT NULL,
    n                   INTEGER NOT NULL,
    created_at          INTEGER NOT NULL,
    model               TEXT,
    format              TEXT NOT NULL,
    renderer            INTEGER NOT NULL,
    last_seq            INTEGER NOT NULL,
    rewrites            INTEGER NOT NULL,
    version             INTEGER NOT NULL,
    plan                INTEGER NOT NULL,
    plan_length         INTEGER NOT NULL,
    carries             BOOLEAN NOT NULL,
    messages            INTEGER NOT NULL,
    bytes               INTEGER NOT NULL,
    digest              BLOB NOT NULL,
    openai_bytes        INTEGER NOT NULL,
    previous_bytes      INTEGER,
    shared_bytes        INTEGER,
    tokens_before       INTEGER NOT NULL,
    tokens_after        INTEGER NOT NULL,
    added               INTEGER NOT NULL,
    refetches           INTEGER NOT NULL,
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
    tenant_id   INTEGER NOT NULL,
    session_id  BLOB NOT NULL,
    n           INTEGER NOT NULL,
    step        INTEGER NOT NULL,
    marks       BLOB NOT NULL,
    PRIMARY KEY (tenant_id, session_id),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
);

-- What was done to a history, one row a value of sessions.rewrites: `rewound` (everything behind seq is gone),
-- `replaced` and `erased` (the message of that seq). It tells a replay what it can no longer show.
CREATE TABLE rewrites (
    tenant_id   INTEGER NOT NULL,
    session_id  BLOB NOT NULL,
    counter     INTEGER NOT NULL,
    kind        TEXT NOT NULL,
    seq         INTEGER NOT NULL,
    message_id  TEXT,
    created_at  INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, session_id, counter),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
) WITHOUT ROWID;

-- Results shown for interrupted calls are few: whoever counts messages must find them.
CREATE INDEX messages_fills ON messages (tenant_id, session_id, seq) WHERE fill IS NOT NULL;

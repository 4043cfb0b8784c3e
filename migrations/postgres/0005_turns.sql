-- Turns: a model is asked, and its answer stored.

-- The turn that runs in a session, and until when it holds it unless that is renewed. It stands in the session's
-- row so that whatever locks the row for a write knows of it.
ALTER TABLE sessions ADD COLUMN turn_id UUID;
ALTER TABLE sessions ADD COLUMN turn_until TIMESTAMPTZ;

CREATE INDEX sessions_turns ON sessions (turn_until) WHERE turn_until IS NOT NULL;

-- status: in_progress, completed, requires_tool_results, failed. first_seq to last_seq: the messages that it added.
-- model, finish, error_detail: JSON spelling. open_calls: ids as a JSON array. dispatch, compaction: number of the
-- dispatch whose answer it was, version of the compaction made on the way.
CREATE TABLE turns (
    tenant_id       BIGINT NOT NULL,
    session_id      UUID NOT NULL,
    id              UUID NOT NULL,
    status          TEXT NOT NULL,
    model           TEXT,
    first_seq       BIGINT,
    last_seq        BIGINT,
    dispatch        BIGINT,
    compaction      BIGINT,
    finish          TEXT,
    usage           TEXT,
    incomplete      BOOLEAN NOT NULL DEFAULT FALSE,
    open_calls      TEXT,
    error_code      TEXT,
    error_detail    TEXT,
    created_at      TIMESTAMPTZ NOT NULL,
    ended_at        TIMESTAMPTZ,
    PRIMARY KEY (tenant_id, session_id, id),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
);

-- Answers that are kept under a client's key, so that a request that is made again is done once.

-- scope: SHA-256 of method and path. request_digest: SHA-256 of the body. session_id: the session that the answer is
-- about. shows_history: the answer is made of what an edit of the session may take away. state: done (`answer` is what
-- it is repeated from), turn, compaction (it stands or falls with that work, whose id is `token`).
CREATE TABLE idempotency (
    tenant_id       BIGINT NOT NULL,
    scope           BYTEA NOT NULL,
    request_key     TEXT NOT NULL,
    request_digest  BYTEA NOT NULL,
    session_id      UUID,
    shows_history   BOOLEAN NOT NULL,
    state           TEXT NOT NULL,
    token           UUID,
    answer          TEXT NOT NULL,
    created_at      TIMESTAMPTZ NOT NULL,
    expires_at      TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (tenant_id, scope, request_key),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
);

CREATE INDEX idempotency_sessions ON idempotency (tenant_id, session_id);
CREATE INDEX idempotency_expiry ON idempotency (expires_at);

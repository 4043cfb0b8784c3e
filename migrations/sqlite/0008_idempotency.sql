-- Answers that are kept under a client's key, so that a request that is made again is done once.

-- scope: SHA-256 of method and path. request_digest: SHA-256 of the body. session_id: the session that the answer is
-- about. shows_history: the answer is made of what an edit of the session may take away. state: done (`answer` is what
-- it is repeated from), turn, compaction (it stands or falls with that work, whose id is `token`).
CREATE TABLE idempotency (
    tenant_id       INTEGER NOT NULL,
    scope           BLOB NOT NULL,
    request_key     TEXT NOT NULL,
    request_digest  BLOB NOT NULL,
    session_id      BLOB,
    shows_history   BOOLEAN NOT NULL,
    state           TEXT NOT NULL,
    token           BLOB,
    answer          TEXT NOT NULL,
    created_at      INTEGER NOT NULL,
    expires_at      INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, scope, request_key),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
);

CREATE INDEX idempotency_sessions ON idempotency (tenant_id, session_id);
CREATE INDEX idempotency_expiry ON idempotency (expires_at);

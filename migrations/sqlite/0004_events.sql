-- Events: what happened to a session, numbered from 1 without a gap, each stored with the change it reports.
-- event_seq: the id of the session's newest event; it stays when old events are deleted.

ALTER TABLE sessions ADD COLUMN event_seq INTEGER NOT NULL DEFAULT 0;

-- type, data: the event's name and its members as JSON; ids and numbers, never content.
CREATE TABLE events (
    tenant_id   INTEGER NOT NULL,
    session_id  BLOB NOT NULL,
    id          INTEGER NOT NULL,
    type        TEXT NOT NULL,
    data        TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, session_id, id),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
) WITHOUT ROWID;

CREATE INDEX events_by_age ON events (created_at);

-- announced: what the event that told of the work's start said of it, as JSON; NULL until it was told of. Whoever
-- ends the lease also tells of the end, once.
ALTER TABLE leases ADD COLUMN announced TEXT;

CREATE INDEX leases_by_end ON leases (expires_at);

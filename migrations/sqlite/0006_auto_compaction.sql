-- Automatic compaction: which sessions are due, and why one that is large is not.

-- due_at: when a replica looks at the session; NULL if it is not due. Whoever takes it moves this on, so that it
-- comes due again if its taker dies. due_waits: it is due and waits for its prefix to become cold. due_failures:
-- runs that failed since one last did not. stalls: runs in a row behind which the context was still over the
-- trigger. stalled_tokens: its size when they were given up, NULL if they are not.
ALTER TABLE sessions ADD COLUMN due_at INTEGER;
ALTER TABLE sessions ADD COLUMN due_waits BOOLEAN NOT NULL DEFAULT FALSE;
ALTER TABLE sessions ADD COLUMN due_failures INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN stalls INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN stalled_tokens INTEGER;

CREATE INDEX sessions_due ON sessions (due_at) WHERE due_at IS NOT NULL;

-- note: why the context was still over the trigger behind it; NULL if it was not, or none was set.
ALTER TABLE compactions ADD COLUMN note TEXT;

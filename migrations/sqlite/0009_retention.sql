-- How long a session is kept, and sessions that nobody sees.

-- retention_days: days behind its last write after which a session is deleted; NULL: what the tenant says, or else
-- the server; 0: never. deleted_at: if it is not NULL, the session is not there for anybody, and from this time on
-- what is left of it is deleted, in pieces. An import hides a session this way until it is whole.
ALTER TABLE sessions ADD COLUMN retention_days INTEGER;
ALTER TABLE sessions ADD COLUMN deleted_at INTEGER;

-- Neither is touched by an append.
CREATE INDEX sessions_retention ON sessions (tenant_id, id) WHERE retention_days IS NOT NULL;
CREATE INDEX sessions_deleted ON sessions (deleted_at) WHERE deleted_at IS NOT NULL;

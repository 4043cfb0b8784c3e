-- Tenants with limits of their own, the keys by which requests name them, and the processes that share the database.

-- requests_per_second, request_burst, concurrent_compactions, concurrent_turns, stored_bytes, retention_days: what
-- holds for this tenant; NULL: what the server's settings say, 0: no limit.
ALTER TABLE tenants ADD COLUMN requests_per_second INTEGER;
ALTER TABLE tenants ADD COLUMN request_burst INTEGER;
ALTER TABLE tenants ADD COLUMN concurrent_compactions INTEGER;
ALTER TABLE tenants ADD COLUMN concurrent_turns INTEGER;
ALTER TABLE tenants ADD COLUMN stored_bytes INTEGER;
ALTER TABLE tenants ADD COLUMN retention_days INTEGER;
ALTER TABLE tenants ADD COLUMN created_at INTEGER;

-- id: the part of a key that is no secret. digest: SHA-256 of its secret. scopes: words with commas between them.
-- A key that is revoked stays, so that a store that ever had a key never answers without one again.
CREATE TABLE keys (
    tenant_id   INTEGER NOT NULL REFERENCES tenants (id),
    id          TEXT NOT NULL,
    name        TEXT NOT NULL,
    scopes      TEXT NOT NULL,
    digest      BLOB NOT NULL,
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER,
    revoked_at  INTEGER,
    PRIMARY KEY (tenant_id, id)
);

CREATE UNIQUE INDEX keys_by_id ON keys (id);

-- Processes that serve this database, each with the last time it said so: a tenant's rate is shared among them.
CREATE TABLE replicas (
    id          BLOB NOT NULL PRIMARY KEY,
    version     TEXT NOT NULL,
    started_at  INTEGER NOT NULL,
    seen_at     INTEGER NOT NULL
) WITHOUT ROWID;

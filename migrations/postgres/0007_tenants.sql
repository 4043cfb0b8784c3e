-- Tenants with limits of their own, the keys by which requests name them, and the processes that share the database.

-- requests_per_second, request_burst, concurrent_compactions, concurrent_turns, stored_bytes, retention_days: what
-- holds for this tenant; NULL: what the server's settings say, 0: no limit.
ALTER TABLE tenants ADD COLUMN requests_per_second BIGINT;
ALTER TABLE tenants ADD COLUMN request_burst BIGINT;
ALTER TABLE tenants ADD COLUMN concurrent_compactions BIGINT;
ALTER TABLE tenants ADD COLUMN concurrent_turns BIGINT;
ALTER TABLE tenants ADD COLUMN stored_bytes BIGINT;
ALTER TABLE tenants ADD COLUMN retention_days BIGINT;
ALTER TABLE tenants ADD COLUMN created_at TIMESTAMPTZ;

-- id: the part of a key that is no secret. digest: SHA-256 of its secret. scopes: words with commas between them.
-- A key that is revoked stays, so that a store that ever had a key never answers without one again.
CREATE TABLE keys (
    tenant_id   BIGINT NOT NULL REFERENCES tenants (id),
    id          TEXT NOT NULL,
    name        TEXT NOT NULL,
    scopes      TEXT NOT NULL,
    digest      BYTEA NOT NULL,
    created_at  TIMESTAMPTZ NOT NULL,
    expires_at  TIMESTAMPTZ,
    revoked_at  TIMESTAMPTZ,
    PRIMARY KEY (tenant_id, id)
);

CREATE UNIQUE INDEX keys_by_id ON keys (id);

-- Processes that serve this database, each with the last time it said so: a tenant's rate is shared among them.
CREATE TABLE replicas (
    id          UUID NOT NULL PRIMARY KEY,
    version     TEXT NOT NULL,
    started_at  TIMESTAMPTZ NOT NULL,
    seen_at     TIMESTAMPTZ NOT NULL
);

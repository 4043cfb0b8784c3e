-- The search. Terms are cut by the service (src/domain/terms.rs), so that both databases find the same.
-- indexed_seq: how far the index reaches. It is brought up to date when somebody searches.

ALTER TABLE sessions ADD COLUMN indexed_seq BIGINT NOT NULL DEFAULT 0;

-- One row a chunk of a message. terms: as the configuration `simple` would leave them, with their places, and
-- one term that names the session.
CREATE TABLE search_rows (
    tenant_id   BIGINT NOT NULL,
    session_id  UUID NOT NULL,
    seq         BIGINT NOT NULL,
    chunk       BIGINT NOT NULL,
    terms       TSVECTOR NOT NULL,
    PRIMARY KEY (tenant_id, session_id, seq, chunk),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
);

CREATE INDEX search_rows_terms ON search_rows USING GIN (terms);

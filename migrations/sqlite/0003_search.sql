-- The search. Terms are cut by the service (src/domain/terms.rs), so that both databases find the same.
-- indexed_seq: how far the index reaches. It is brought up to date when somebody searches.

ALTER TABLE sessions ADD COLUMN indexed_seq INTEGER NOT NULL DEFAULT 0;

-- One row a chunk of a message. An id is never used twice: the index may know it longer than this table.
CREATE TABLE search_rows (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant_id   INTEGER NOT NULL,
    session_id  BLOB NOT NULL,
    seq         INTEGER NOT NULL,
    chunk       INTEGER NOT NULL,
    UNIQUE (tenant_id, session_id, seq, chunk),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
);

-- rowid: that of search_rows. session: one term that names the session. terms: joined by spaces; everything
-- that is not ASCII is a part of a term, and all that is ASCII in them is letters and digits.
CREATE VIRTUAL TABLE search_terms USING fts5 (session, terms, tokenize = 'ascii', columnsize = 0);

-- What is deleted is taken out of the index, not marked in it.
INSERT INTO search_terms (search_terms, rank) VALUES ('secure-delete', 1);

-- Chunks that are gone, and not found any more, whose terms are still to be taken out of the index: that takes
-- longer than a request should. The writer does it when it has nothing else to do.
CREATE TABLE search_trash (
    id          INTEGER NOT NULL PRIMARY KEY
);

CREATE TRIGGER search_rows_gone AFTER DELETE ON search_rows BEGIN
    INSERT INTO search_trash (id) VALUES (old.id);
END;

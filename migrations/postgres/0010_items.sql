-- Items: messages that came through the conversations API.

-- item: the item as it came; NULL for a chat message, empty once it was erased. body is then the chat message that
-- a context shows of it, empty if it shows nothing.
ALTER TABLE messages ADD COLUMN item TEXT;

-- Rows that may add no message of their own to a context: items that go on with the answer of the row before them,
-- those that show nothing, and those without a text or a call. Whoever builds a context must know whether there are any.
CREATE INDEX messages_joined ON messages (tenant_id, session_id, seq)
    WHERE role = 'assistant' AND (NOT starts_group OR length = 0 AND item IS NOT NULL);

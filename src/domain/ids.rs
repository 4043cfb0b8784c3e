//! Ids on the wire: a prefix that says what it is, and a `UUIDv7` in 32 hexadecimal digits.

use uuid::Uuid;

const SESSION: &str = "sess_";
/// The same session, as the conversations API calls it.
const CONVERSATION: &str = "conv_";
const MESSAGE: &str = "msg_";
const COMPACTION: &str = "comp_";
const TURN: &str = "turn_";

/// The id of a session.
#[must_use]
pub fn session_id(id: Uuid) -> String {
    format!("{SESSION}{}", id.simple())
}

/// The id of a session as a conversation: the same session by another prefix.
#[must_use]
pub fn conversation_id(id: Uuid) -> String {
    format!("{CONVERSATION}{}", id.simple())
}

/// The id of a message that the service names itself.
#[must_use]
pub fn message_id(id: Uuid) -> String {
    format!("{MESSAGE}{}", id.simple())
}

/// The id of a compaction.
#[must_use]
pub fn compaction_id(id: Uuid) -> String {
    format!("{COMPACTION}{}", id.simple())
}

/// The id of a turn.
#[must_use]
pub fn turn_id(id: Uuid) -> String {
    format!("{TURN}{}", id.simple())
}

/// Reads the id of a turn. One spelling only.
#[must_use]
pub fn parse_turn_id(id: &str) -> Option<Uuid> {
    let uuid = Uuid::try_parse(id.strip_prefix(TURN)?).ok()?;
    (turn_id(uuid) == id).then_some(uuid)
}

/// Reads the id of a session, or of it as a conversation. One spelling of the digits only.
#[must_use]
pub fn parse_session_id(id: &str) -> Option<Uuid> {
    let digits = id
        .strip_prefix(SESSION)
        .or_else(|| id.strip_prefix(CONVERSATION))?;
    let uuid = Uuid::try_parse(digits).ok()?;
    (uuid.simple().to_string() == digits).then_some(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_one_spelling_is_read() {
        let id = "sess_019acf0b2a7c7d1e9f00aabbccddeeff";
        let uuid = parse_session_id(id).unwrap();
        assert_eq!(session_id(uuid), id);
        assert_eq!(parse_session_id(&conversation_id(uuid)), Some(uuid));
        for wrong in [
            "sess_019ACF0B2A7C7D1E9F00AABBCCDDEEFF",
            "sess_019acf0b-2a7c-7d1e-9f00-aabbccddeeff",
            "019acf0b2a7c7d1e9f00aabbccddeeff",
            "msg_019acf0b2a7c7d1e9f00aabbccddeeff",
            "sess_",
            "",
        ] {
            assert_eq!(parse_session_id(wrong), None, "{wrong}");
        }
    }
}

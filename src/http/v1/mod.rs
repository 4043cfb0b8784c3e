//! `/v1`: conversations and compaction as the official OpenAI clients ask for them.
//!
//! The same sessions, storage and rules as everywhere; other shapes. Members that are not known are let
//! pass, as newer clients send more of them. Errors have that API's shape, see `error`.

pub(super) mod compact;
pub(super) mod conversations;
mod error;
pub(super) mod items;
mod read;
mod retries;

pub use error::{document, is_path, status};
pub use retries::{Refusals, Try};

/// The schemas of what is taken here, each with the name of its component in the OpenAPI document. They describe; what is
/// read is checked by `read` and `domain::items`, which let pass what they do not know.
pub const DOCUMENTS: [(&str, &str); 5] = [
    (
        "ConversationItemInput",
        include_str!("../../../schemas/item.json"),
    ),
    (
        "CreateConversation",
        include_str!("../../../schemas/conversation-create.json"),
    ),
    (
        "UpdateConversation",
        include_str!("../../../schemas/conversation-update.json"),
    ),
    (
        "CreateConversationItems",
        include_str!("../../../schemas/items-create.json"),
    ),
    (
        "CompactResponse",
        include_str!("../../../schemas/items-compact.json"),
    ),
];

//! `/v1`: conversations and compaction as the official OpenAI clients ask for them.
//!
//! The same sessions, storage and rules as everywhere; other shapes. Members that are not known are let
//! pass, as newer clients send more of them. Errors have that API's shape, see `error`.

mod compact;
mod conversations;
mod error;
mod items;
mod read;
mod retries;

pub use error::{document, is_path, status};
pub use retries::{Refusals, Try};

use utoipa_actix_web::service_config::ServiceConfig;

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

/// Every route under `/v1`.
pub fn routes(config: &mut ServiceConfig<'_>) {
    config
        .service(conversations::create_conversation)
        .service(conversations::get_conversation)
        .service(conversations::update_conversation)
        .service(conversations::delete_conversation)
        .service(items::create_items)
        .service(items::list_items)
        .service(items::get_item)
        .service(items::delete_item)
        .service(compact::compact_response);
}

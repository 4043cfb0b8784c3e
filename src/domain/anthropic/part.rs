//! Content: a string or an array of parts, to blocks.
//!
//! Which parts may stand where depends on who speaks. Reasoning among the parts of an assistant message
//! is read by `thought`.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use super::Fault;
use super::block::{Block, Fields, is_blank, shown, spelled};
use super::data::{data_uri, strip_scheme};
use super::thought::{self, Thought};
use crate::domain::json;

/// Pictures that the API reads.
const PICTURES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/// Longest title of a document, in characters.
const TITLE_CHARS: usize = 500;

/// Base64 with or without its padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Whose content it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Speaker {
    /// Text only.
    Instruction,
    /// Text, pictures and documents; a tool's result too.
    User,
    /// Text and reasoning.
    Assistant,
}

/// What a `content` value says.
#[derive(Debug, Default)]
pub(super) struct Content<'a> {
    /// Its blocks, in its order.
    pub(super) blocks: Vec<Block>,
    /// The reasoning among its parts (an assistant's only).
    pub(super) thoughts: Vec<Thought<'a>>,
}

/// Reads a `content` value; pointers begin inside the message.
pub(super) fn content(value: &str, speaker: Speaker) -> Result<Content<'_>, Fault> {
    let mut content = Content::default();
    if value.starts_with('"') {
        content.blocks.extend(Block::text(value));
        return Ok(content);
    }
    if !value.starts_with('[') {
        return Err(Fault::new(
            "/content",
            "content that is neither text nor parts",
        ));
    }
    for (index, text) in json::elements(value).into_iter().enumerate() {
        part(text, speaker, &mut content).map_err(|fault| fault.inside(index).inside("content"))?;
    }
    Ok(content)
}

fn part<'a>(text: &'a str, speaker: Speaker, content: &mut Content<'a>) -> Result<(), Fault> {
    if !text.starts_with('{') {
        return Err(Fault::new("", "a content part that is no object"));
    }
    let fields = Fields::of(text);
    let kind = match fields.string("type") {
        Some(kind) => kind,
        None if fields.literal("text").is_some() => Cow::Borrowed("text"),
        None => return Err(Fault::new("", "a content part without a type")),
    };
    let block = match (kind.as_ref(), speaker) {
        ("text" | "refusal", _) => said(&fields, &kind)?,
        ("thinking" | "redacted_thinking", Speaker::Assistant) => {
            content.thoughts.extend(thought::block(text)?);
            None
        }
        ("image_url", Speaker::User) => Some(image_url(&fields)?),
        ("file", Speaker::User) => Some(file(&fields)?),
        ("image" | "document", Speaker::User) => Some(native(text, &fields, "source", '{')?),
        ("search_result", Speaker::User) => Some(native(text, &fields, "content", '[')?),
        _ => return Err(Fault::new("", misplaced(&kind, speaker))),
    };
    content.blocks.extend(block);
    Ok(())
}

fn misplaced(kind: &str, speaker: Speaker) -> String {
    let place = match speaker {
        Speaker::Instruction => " in an instruction",
        Speaker::User => "",
        Speaker::Assistant => " in an assistant message",
    };
    format!("a content part {}{place}", shown(kind))
}

/// What a part says in its member `name`.
fn said(fields: &Fields<'_>, name: &str) -> Result<Option<Block>, Fault> {
    match fields.get(name) {
        Some(literal) if literal.starts_with('"') => Ok(Block::text(literal)),
        Some(_) => Err(Fault::new(format!("/{name}"), "text that is no string")),
        None => Ok(None),
    }
}

fn image_url(fields: &Fields<'_>) -> Result<Block, Fault> {
    let value = fields.get("image_url").unwrap_or_default();
    let (pointer, literal) = if value.starts_with('"') {
        ("/image_url", Some(value))
    } else {
        ("/image_url/url", Fields::of(value).literal("url"))
    };
    let fault = |what: String| Fault::new(pointer, what);
    let literal = literal.ok_or_else(|| fault("an image without a URL".to_owned()))?;
    let url = json::decode_string(literal).unwrap_or_default();
    if ["http://", "https://"]
        .iter()
        .any(|scheme| strip_scheme(&url, scheme).is_some())
    {
        let source = format!(r#"{{"type":"url","url":{literal}}}"#);
        return Ok(Block::new(format!(
            r#"{{"type":"image","source":{source}}}"#
        )));
    }
    let Some(uri) = data_uri(&url) else {
        return Err(fault(
            "an image that is neither at an http address nor a data URI in base64".to_owned(),
        ));
    };
    let media_type = match uri.media_type.as_ref() {
        "image/jpg" => "image/jpeg",
        other => other,
    };
    if !PICTURES.contains(&media_type) {
        return Err(fault(format!("an image {}", shown(media_type))));
    }
    Ok(Block::new(format!(
        r#"{{"type":"image","source":{}}}"#,
        base64_source(media_type, uri.data)
    )))
}

fn base64_source(media_type: &str, data: &str) -> String {
    format!(r#"{{"type":"base64","media_type":"{media_type}","data":"{data}"}}"#)
}

fn file(fields: &Fields<'_>) -> Result<Block, Fault> {
    let file = Fields::of(fields.get("file").unwrap_or_default());
    let Some(data) = file.string("file_data") else {
        return Err(if file.get("file_id").is_some() {
            Fault::new("/file/file_id", "a file that is kept elsewhere")
        } else {
            Fault::new("/file", "a file without its data")
        });
    };
    let fault = |what: String| Fault::new("/file/file_data", what);
    let uri = data_uri(&data)
        .ok_or_else(|| fault("a file whose data is no data URI in base64".to_owned()))?;
    let source = match uri.media_type.as_ref() {
        "application/pdf" => base64_source("application/pdf", uri.data),
        "text/plain" => text_source(uri.data).map_err(fault)?,
        other => return Err(fault(format!("a file {}", shown(other)))),
    };
    let title = title(&file);
    Ok(Block::new(format!(
        r#"{{"type":"document","source":{source}{title}}}"#
    )))
}

fn text_source(data: &str) -> Result<String, String> {
    let text = BASE64
        .decode(data)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or_else(|| "a text file that is not UTF-8".to_owned())?;
    let literal = json::encode_string(&text);
    if is_blank(&literal) {
        return Err("a text file with nothing in it".to_owned());
    }
    Ok(format!(
        r#"{{"type":"text","media_type":"text/plain","data":{literal}}}"#
    ))
}

/// The member for a file's name, with the comma before it; empty without a name.
fn title(file: &Fields<'_>) -> String {
    let named = file.literal("filename").filter(|name| !is_blank(name));
    let Some(literal) = named else {
        return String::new();
    };
    if spelled(literal).len() <= TITLE_CHARS {
        return format!(r#","title":{literal}"#);
    }
    let name = json::decode_string(literal).unwrap_or_default();
    let cut: String = name.chars().take(TITLE_CHARS).collect();
    format!(r#","title":{}"#, json::encode_string(&cut))
}

/// A block of the API's own kind passes as it came, but for `cache_control`, which is the service's to give.
fn native(text: &str, fields: &Fields<'_>, needs: &str, beginning: char) -> Result<Block, Fault> {
    match fields.get(needs) {
        Some(value) if value.starts_with(beginning) => Ok(Block::new(uncached(text))),
        _ => Err(Fault::new(
            "",
            format!("a content block without its `{needs}`"),
        )),
    }
}

/// `text` without `cache_control`, at any depth: nested content may carry it too.
fn uncached(text: &str) -> String {
    // A name can also be spelled with escapes.
    if !text.contains("cache_control") && !text.contains(r"\u") {
        return text.to_owned();
    }
    if text.starts_with('[') {
        let kept: Vec<_> = json::elements(text).into_iter().map(uncached).collect();
        return format!("[{}]", kept.join(","));
    }
    if !text.starts_with('{') {
        return text.to_owned();
    }
    let kept: Vec<_> = json::members(text)
        .iter()
        .filter(|member| member.name != "cache_control")
        .map(|member| {
            let name = json::encode_string(&member.name);
            format!("{name}:{}", uncached(member.value))
        })
        .collect();
    format!("{{{}}}", kept.join(","))
}

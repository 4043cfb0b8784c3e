//! Compacting items that nobody stores: those of a request, or those of a conversation, which stays as
//! it is. What comes out is what a client goes on with: the instructions and the user's messages as they
//! came, then a summary of everything.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::super::once::{read_recipe, to_recipe};
use super::super::summarizer::{Job, replaced};
use super::super::{Caller, RequestKey, Service, ServiceError, key};
use super::list::items_of;
use crate::domain::budget::Usage;
use crate::domain::message::{Message, Part, Role, read_material};
use crate::domain::transcript::Entry;
use crate::domain::{context, items, prompt, size};
use crate::storage::{ContextHead, Kept, MessageFilter, Order, SessionKey};

/// Bytes of a stored conversation that one request compacts.
const MOST_BYTES: usize = 64 << 20;
/// Messages that are read at once.
const PAGE: usize = 500;

/// How the summary comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CompactionForm {
    /// A message that any model reads.
    #[default]
    Message,
    /// A `compaction` item, which only this service reads.
    Item,
}

/// What to compact.
#[derive(Debug)]
pub struct CompactItems<'a> {
    /// Items of the request.
    pub input: Vec<&'a RawValue>,
    /// A stored conversation, whose items stand before them.
    pub conversation: Option<String>,
    /// What the summarizer is told beside its prompt.
    pub instructions: Option<String>,
    /// How the summary comes back.
    pub form: CompactionForm,
}

/// What came of it.
#[derive(Debug)]
pub struct CompactedItems {
    /// The id of the answer.
    pub id: String,
    /// When it was made, in seconds since 1970.
    pub created_at: i64,
    /// JSON texts of the items to go on with.
    pub output: Vec<String>,
    /// Tokens that were read.
    pub input_tokens: i64,
    /// Tokens of the summary.
    pub output_tokens: i64,
}

/// What the answer is made of, beside the items that stay as they are.
#[derive(Debug, Serialize, Deserialize)]
struct Recipe {
    /// What the ids of the answer and of its summary end in.
    id: String,
    created_at: i64,
    /// Ids of the items of the request.
    ids: Vec<String>,
    /// Up to where the stored conversation was read.
    last_seq: i64,
    summary: String,
    input_tokens: i64,
    output_tokens: i64,
}

impl Recipe {
    fn answer(self, mut output: Vec<String>, form: CompactionForm) -> CompactedItems {
        let named = |prefix: &str| format!("{prefix}{}", self.id);
        output.push(match form {
            CompactionForm::Message => items::summary_message(&named("msg_"), &self.summary),
            CompactionForm::Item => items::compaction(&named("cmp_"), &self.summary),
        });
        CompactedItems {
            id: named("resp_"),
            created_at: self.created_at,
            output,
            input_tokens: self.input_tokens,
            output_tokens: self.output_tokens,
        }
    }
}

/// What is known of the items so far.
#[derive(Default)]
struct Material {
    entries: Vec<Entry>,
    /// Items that stay as they are.
    kept: Vec<String>,
    /// The newest summary among them.
    previous: Option<String>,
    units: u64,
    tokens: u64,
    /// Tool and place of each call, by its id.
    calls: HashMap<String, (Option<String>, i64)>,
    /// Calls of the answer so far.
    in_answer: i64,
}

impl Material {
    /// Takes an item of a request.
    fn push_item(&mut self, message: &Message, id: &str) {
        let shown = items::show(message.item.as_deref().unwrap_or_default(), id);
        self.push(message, &shown);
    }

    fn push(&mut self, message: &Message, shown: &str) {
        self.tokens += message.tokens;
        if message.shows_nothing() {
            return;
        }
        if message.role == Role::User
            && let Some(summary) = shown_summary(&message.body)
        {
            self.previous = Some(summary);
            return;
        }
        if message.role == Role::User || message.role.is_instruction() {
            // It goes where it has no message to come from.
            self.kept.push(items::renamed(shown));
        }
        self.units += message.size.units;
        let answered = message.answers.as_ref();
        let (tool, at) = answered
            .and_then(|call| self.calls.get(call))
            .map_or((None, None), |(tool, at)| (tool.as_deref(), Some(*at)));
        let Some(entry) = Entry::read(message.role, tool, at, &message.body) else {
            return;
        };
        let goes_on = message.role == Role::Assistant
            && matches!(self.entries.last(), Some(Entry::Assistant { .. }));
        if !goes_on {
            self.in_answer = 0;
        }
        for call in &message.calls {
            let place = (call.name.clone(), self.in_answer);
            self.calls.insert(call.id.clone(), place);
            self.in_answer += 1;
        }
        match self.entries.last_mut().filter(|_| goes_on) {
            Some(last) => last.go_on(entry),
            None if entry.is_empty() => {}
            None => self.entries.push(entry),
        }
    }
}

/// The summary of a message that is one.
fn shown_summary(body: &str) -> Option<String> {
    match read_material(body).parts.as_slice() {
        [Part::Text(text)] => context::shown_summary(text).map(ToOwned::to_owned),
        _ => None,
    }
}

impl Service {
    /// Compacts items. Nothing is stored and nothing changes.
    ///
    /// # Errors
    /// An item cannot be read, there is no such conversation or it is too large, or the summarizer failed.
    pub async fn compact_items(
        &self,
        caller: Caller,
        request: &CompactItems<'_>,
        once: Option<&RequestKey>,
    ) -> Result<CompactedItems, ServiceError> {
        if self.inner.draining.is_cancelled() {
            return Err(ServiceError::ShuttingDown);
        }
        let _place = self.admit_loose(caller.tenant).await?;
        let mut material = Material::default();
        let head = self
            .read_conversation(caller, request, &mut material, i64::MAX)
            .await?;
        let read = self.read_input(&request.input)?;
        let ids = read.iter().map(|(id, _)| id.clone()).collect();
        for (id, message) in read {
            material.push_item(&message, &id);
        }
        if material.entries.is_empty() && material.previous.is_none() {
            return Err(ServiceError::NothingToCompact);
        }
        let input_tokens = signed(material.tokens).max(1);
        let output = std::mem::take(&mut material.kept);
        let (summary, usage) = self.summarize(material, request).await?;
        let recipe = Recipe {
            id: self.new_id().simple().to_string(),
            created_at: self.now().0.div_euclid(1_000_000),
            ids,
            last_seq: head.as_ref().map_or(0, |head| head.last_seq),
            input_tokens: usage.map_or(input_tokens, |usage| usage.input),
            output_tokens: usage
                .map_or(signed(size::tokens(&summary)).max(1), |usage| usage.output),
            summary,
        };
        if let Some(once) = once {
            let id = request.conversation.as_deref();
            let key = id.map(|id| key(caller, id)).transpose()?;
            let rewrites = head.map(|head| head.rewrites);
            self.keep_text(caller.tenant, key, once, to_recipe(&recipe)?, rewrites)
                .await?;
        }
        Ok(recipe.answer(output, request.form))
    }

    /// The answer as it was given first, to the same request.
    ///
    /// # Errors
    /// The conversation is not what it was, or the database failed.
    pub async fn repeat_compact_items(
        &self,
        caller: Caller,
        request: &CompactItems<'_>,
        kept: &Kept,
    ) -> Result<CompactedItems, ServiceError> {
        let recipe: Recipe = read_recipe(kept)?;
        let mut material = Material::default();
        self.read_conversation(caller, request, &mut material, recipe.last_seq)
            .await?;
        let read = self.read_input(&request.input)?;
        for ((_, message), id) in read.iter().zip(&recipe.ids) {
            material.push_item(message, id);
        }
        Ok(recipe.answer(material.kept, request.form))
    }

    /// Reads the items of a request, as many as its body holds. None is stored, so two may have one id.
    fn read_input(&self, texts: &[&RawValue]) -> Result<Vec<(String, Message)>, ServiceError> {
        let texts = texts.iter().enumerate();
        texts
            .map(|(index, text)| self.read_item(text.get(), index))
            .collect()
    }

    /// Reads the conversation that a request names, up to a message.
    async fn read_conversation(
        &self,
        caller: Caller,
        request: &CompactItems<'_>,
        material: &mut Material,
        to_seq: i64,
    ) -> Result<Option<ContextHead>, ServiceError> {
        let Some(id) = &request.conversation else {
            return Ok(None);
        };
        let key = key(caller, id)?;
        let head = self.load_head(key, id).await?;
        self.read_stored(key, &head, to_seq, material).await?;
        Ok(Some(head))
    }

    /// The summary, and what a provider said of its call.
    async fn summarize(
        &self,
        material: Material,
        request: &CompactItems<'_>,
    ) -> Result<(String, Option<Usage>), ServiceError> {
        // A summary alone is as short as it can be.
        if let (true, Some(previous)) = (material.entries.is_empty(), &material.previous) {
            return Ok((previous.clone(), None));
        }
        let policy = &self.inner.defaults.compaction;
        let tokens = policy.max_summary_tokens;
        let job = Job {
            prompt: prompt::system(
                &self.inner.defaults.compaction_prompt,
                tokens,
                request.instructions.as_deref(),
            ),
            replaced: replaced(material.previous.as_deref(), signed(material.units), tokens),
            previous: material.previous,
            entries: material.entries,
            redact: policy.redact_secrets,
            requested_model: None,
            agent_model: None,
            session_model: None,
        };
        let summary = self
            .inner
            .summarizer
            .summarize(job, &self.inner.metrics)
            .await?;
        let usage = summary.usage.as_deref().and_then(Usage::read);
        let usage = usage.filter(|usage| usage.input > 0 && usage.output > 0);
        Ok((summary.text, usage))
    }

    /// Reads the items of a conversation in order.
    async fn read_stored(
        &self,
        key: SessionKey,
        head: &ContextHead,
        to_seq: i64,
        material: &mut Material,
    ) -> Result<(), ServiceError> {
        let mut filter = MessageFilter {
            after_seq: 0,
            before_seq: head.last_seq.min(to_seq).saturating_add(1),
            role: None,
            order: Order::Asc,
        };
        let mut bytes = 0;
        loop {
            let (rows, more) = self
                .database()
                .list_messages(key, &filter, head.compaction_version, PAGE)
                .await?;
            for row in &rows {
                bytes += row.body.len();
                if bytes > MOST_BYTES {
                    return Err(ServiceError::ConversationTooLarge { limit: MOST_BYTES });
                }
                for item in items_of(row) {
                    let read = items::read(&item.text);
                    let mut message =
                        read.map_err(|_| ServiceError::Internal("a stored item cannot be read"))?;
                    self.inner.counter.count(&mut message);
                    material.push(&message, &item.text);
                }
            }
            match rows.last().filter(|_| more) {
                Some(last) => filter.after_seq = last.seq,
                None => return Ok(()),
            }
        }
    }
}

fn signed(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

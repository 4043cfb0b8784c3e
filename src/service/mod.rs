//! The use cases, a file each. What a request means is decided here; how it came is not known.
//!
//! A [`Service`] is one handle to everything a use case needs: the database, the models, the
//! settings, and a clock and ids that are passed in. It holds no state of any session: replicas
//! share nothing but the database.

mod access;
mod agents;
mod auto_compaction;
mod background;
mod compaction;
mod context;
mod conversations;
mod dispatch;
mod error;
mod events;
mod explain;
mod health;
mod hub;
mod keys;
mod layout;
mod limits;
mod messages;
mod metrics;
mod once;
mod once_work;
mod records;
mod rendering;
mod replay;
mod retention;
mod rewrites;
mod search;
mod sessions;
mod summarizer;
mod tenants;
mod transfer;
mod turns;
mod watching;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use secrecy::SecretString;
use serde_json::value::RawValue;
use time::OffsetDateTime;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::domain::ids;
pub use crate::domain::ids::{compaction_id, conversation_id, parse_session_id, session_id};
pub use access::{Authority, Caller, Scope, Scopes};
pub use agents::{Agent, AgentDocument, DefaultCompaction};
pub use compaction::{CompactOutcome, CompactRequest, Planned};
pub use context::{ContextMeta, Format, LoadedContext, Rendered, TailReader};
pub use conversations::{
    CompactItems, CompactedItems, CompactionForm, Conversation, ItemPage, ListItems, ShownItem,
};
pub use dispatch::{Candidate, DispatchRequest, DispatchTokens, Dispatched, Fit, Judged};
pub use error::{Overflow, ServiceError, SummarizerFailure};
pub use events::{EventTimes, SentEvent, SessionEvents, StreamItem, TenantEvents};
pub use explain::{DispatchRecord, ExplainedEdit, Explanation, PrefixStability, RuleCount, Stats};
pub use health::{Check, Health};
pub use hub::Hub;
pub use keys::{Identity, Key, KeyRequest};
pub use limits::{EffectiveLimits, LimitDefaults};
pub use messages::{AppendRequest, Appended, ListMessages, ListedMessage, MessageState};
pub use metrics::{Metrics, Purpose, StreamKind, WatchedRequest};
pub use once::{Answered, RequestKey, Shown, Template};
pub use once_work::{CompactOnce, TurnAgain};
pub use replay::Replayed;
pub use retention::{PruneReport, PruneRequest, PrunedSession, RetentionTimes};
pub use rewrites::{ForkRequest, RewindRequest};
pub use search::{Hit, SearchPage, SearchRequest};
pub(crate) use sessions::whole;
pub use sessions::{CreateRequest, ListSessions, PatchRequest, Session};
pub use summarizer::{ModelAt, Summarizer};
pub use tenants::{Tenant, TenantPatch};
pub use transfer::{Exported, ImportRequest, Imported, Selection, TransferError};
pub use turns::{Progress, Running, Turn, TurnRequest};

use self::metrics::Live;
use self::search::Indexing;
use crate::domain::policy::{AutoCompactPolicy, CompactionPolicy, PruningPolicy};
use crate::domain::tokens::Counter;
use crate::storage::{Database, SessionKey, Timestamp};

/// What the server decides where neither request nor agent does.
#[derive(Debug, Clone)]
pub struct Defaults {
    /// Percentage of a compaction, 1 to 99.
    pub compact_count: i64,
    /// How compactions are made.
    pub compaction: CompactionPolicy,
    /// How stale tool output is shortened.
    pub pruning: PruningPolicy,
    /// When compactions are made without being asked for.
    pub auto_compact: AutoCompactPolicy,
    /// The model of sessions that name none.
    pub model: Option<String>,
    /// The prompt for the summarizer unless an agent brings its own.
    pub compaction_prompt: String,
}

/// Bounds on what a client sends and on what work takes.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Messages of one append.
    pub messages_per_append: usize,
    /// Bytes of one message.
    pub message_bytes: usize,
    /// Bytes of metadata, and of what else is stored as it came.
    pub metadata_bytes: usize,
    /// How long a lease holds without being renewed.
    pub lease: Duration,
    /// How long a compaction may take.
    pub compaction_deadline: Duration,
    /// Sessions that are compacted at once without being asked for.
    pub auto_concurrency: usize,
    /// How long an answer is kept under a client's key.
    pub answers: Duration,
    /// How long such a compaction waits behind its first failure.
    pub auto_first_wait: Duration,
}

/// Everything a use case needs. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    inner: Arc<Inner>,
}

struct Inner {
    database: Database,
    doors: keys::Doors,
    summarizer: Summarizer,
    defaults: Defaults,
    bounds: Bounds,
    limits: limits::Limits,
    times: EventTimes,
    retention: RetentionTimes,
    hub: Arc<Hub>,
    counter: Counter,
    clock: fn() -> OffsetDateTime,
    new_id: fn() -> Uuid,
    runtime: Handle,
    tasks: TaskTracker,
    draining: CancellationToken,
    indexing: Indexing,
    /// Says that a session may have become due.
    due: Notify,
    turns: turns::Turns,
    metrics: Metrics,
    /// Whether other replicas are heard.
    hears: Arc<AtomicBool>,
    /// Whether they shall be.
    listens: AtomicBool,
    background: TaskTracker,
    closing: CancellationToken,
}

/// What a [`Service`] is made of.
pub struct Parts {
    /// The database.
    pub database: Database,
    /// The key that manages all others, if one is set.
    pub admin_key: Option<SecretString>,
    /// Who writes summaries.
    pub summarizer: Summarizer,
    /// The server's defaults.
    pub defaults: Defaults,
    /// The server's bounds.
    pub bounds: Bounds,
    /// What tenants may use, and what the process can bear.
    pub limits: LimitDefaults,
    /// Times of events.
    pub events: EventTimes,
    /// How long sessions are kept.
    pub retention: RetentionTimes,
    /// What counts tokens.
    pub counter: Counter,
    /// The present.
    pub clock: fn() -> OffsetDateTime,
    /// New ids, rising with time.
    pub new_id: fn() -> Uuid,
    /// Where work goes on that outlives its request.
    pub runtime: Handle,
}

impl Service {
    /// Puts the parts together.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let live = Live {
            database: Some(parts.database.clone()),
            ..Live::default()
        };
        let (turns, hears) = (Arc::clone(&live.turns), Arc::clone(&live.hears));
        let metrics = Metrics::new(live, parts.summarizer.models());
        Self {
            inner: Arc::new(Inner {
                database: parts.database,
                doors: keys::Doors::new(parts.admin_key.as_ref()),
                summarizer: parts.summarizer,
                defaults: parts.defaults,
                bounds: parts.bounds,
                limits: limits::Limits::new(parts.limits, (parts.new_id)()),
                times: parts.events,
                retention: parts.retention,
                hub: Arc::default(),
                counter: parts.counter,
                clock: parts.clock,
                new_id: parts.new_id,
                runtime: parts.runtime,
                tasks: TaskTracker::new(),
                draining: CancellationToken::new(),
                indexing: Indexing::default(),
                due: Notify::new(),
                turns,
                metrics,
                hears,
                listens: AtomicBool::default(),
                background: TaskTracker::new(),
                closing: CancellationToken::new(),
            }),
        }
    }

    /// Ends the streams of events, takes no new compactions, and waits for those that run, at most this long. Says whether all ended.
    pub async fn drain(&self, patience: Duration) -> bool {
        self.inner.draining.cancel();
        self.inner.tasks.close();
        tokio::time::timeout(patience, self.inner.tasks.wait())
            .await
            .is_ok()
    }

    /// Wakes those who read events.
    #[must_use]
    pub fn hub(&self) -> &Hub {
        &self.inner.hub
    }

    /// How often a stream without news says that it is alive.
    #[must_use]
    pub fn keep_alive(&self) -> Duration {
        self.inner.times.keep_alive
    }

    /// What this replica counts.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// The bounds in force.
    #[must_use]
    pub fn bounds(&self) -> &Bounds {
        &self.inner.bounds
    }

    /// Refuses a member that is stored as it came if it is too large.
    fn check_size(
        &self,
        member: &'static str,
        value: Option<&RawValue>,
    ) -> Result<(), ServiceError> {
        let bytes = value.map_or(0, |value| value.get().len());
        let limit = self.bounds().metadata_bytes;
        if bytes > limit {
            return Err(ServiceError::MemberTooLarge {
                member,
                bytes,
                limit,
            });
        }
        Ok(())
    }

    fn database(&self) -> &Database {
        &self.inner.database
    }

    fn now(&self) -> Timestamp {
        Timestamp::of((self.inner.clock)())
    }

    fn new_id(&self) -> Uuid {
        (self.inner.new_id)()
    }
}

/// The key of a session that a caller names; a name that cannot be one is unknown.
fn key(caller: Caller, id: &str) -> Result<SessionKey, ServiceError> {
    let session = parse_session_id(id).ok_or_else(|| ServiceError::session_not_found(id))?;
    Ok(SessionKey {
        tenant: caller.tenant,
        session,
    })
}

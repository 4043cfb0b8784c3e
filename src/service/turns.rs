//! Turns: append, build the context, ask the model, store the answer.
//!
//! A turn runs as a task of the service's own, so that a client that goes away changes nothing. It
//! holds its session by a time that is renewed, and no connection to the database while the model
//! works. If the context turns out not to fit, it is made smaller once and sent once more.

mod smaller;

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;
use uuid::Uuid;

use super::context::TailReader;
use super::dispatch::{DispatchRequest, Dispatched};
use super::error::{Overflow, shorten};
use super::messages::append_refused;
use super::{Caller, ListedMessage, ModelAt, RequestKey, Service, ServiceError, ids, key};
use crate::domain::json;
use crate::domain::message::{Annotations, Role};
use crate::domain::size;
pub(super) use crate::provider::TurnRequest as ModelRequest;
use crate::provider::{ProviderError, TurnAnswer, into_channel};
use crate::storage::{
    Answer, AppendMessages, BeginTurn, Begun, CancelTurn, CompactionRow, EndTurn, Ended, Failure,
    INTERRUPTED, RenewTurn, SessionKey, TurnRefusal, TurnRow,
};
use crate::telemetry;

/// Deltas that wait for a client at most; one that is slower gets no more of them, only the end.
const DELTAS: usize = 1_024;

/// What a turn is asked for.
#[derive(Debug)]
pub struct TurnRequest<'a> {
    /// The texts of the new messages, each well-formed JSON.
    pub messages: Vec<&'a RawValue>,
    /// The model; the session's unless given.
    pub model: Option<String>,
    /// Tool definitions, handed on as they came.
    pub tools: Option<&'a RawValue>,
    /// Members of the request to the model, handed on as they came.
    pub parameters: Vec<(String, &'a RawValue)>,
    /// Whether the model is asked for a stream.
    pub stream: bool,
    /// The model's window in tokens, if it is known.
    pub context_window: Option<i64>,
    /// Tokens that stay free for the answer.
    pub max_output_tokens: Option<i64>,
}

/// A turn as it stands.
#[derive(Debug)]
pub struct Turn {
    /// The record.
    pub row: TurnRow,
    /// The messages that it added, as far as they are still there.
    pub messages: Vec<ListedMessage>,
    /// The compaction made on the way.
    pub compaction: Option<CompactionRow>,
}

/// What comes of a turn while it runs.
#[derive(Debug)]
pub enum Progress {
    /// A piece of the answer, as the provider sent it.
    Delta(Box<RawValue>),
    /// The answer begins anew: what came of it so far does not count.
    Restart,
}

impl From<Box<RawValue>> for Progress {
    fn from(delta: Box<RawValue>) -> Self {
        Self::Delta(delta)
    }
}

/// A turn that was begun.
pub struct Running {
    /// What was stored; a turn that waits for results is over already.
    pub begun: Turn,
    /// Pieces of the answer.
    pub progress: mpsc::Receiver<Progress>,
    /// The end.
    pub end: oneshot::Receiver<Result<Turn, ServiceError>>,
}

/// Turns that run in this process, so that one is stopped at once where it runs.
pub(super) type Turns = Arc<Mutex<HashMap<Uuid, (SessionKey, CancellationToken)>>>;

/// Takes a turn off the list when its task ends, however it does.
struct Listed {
    list: Turns,
    id: Uuid,
    stop: CancellationToken,
}

impl Listed {
    fn new(list: &Turns, id: Uuid, key: SessionKey) -> Self {
        let stop = CancellationToken::new();
        let mut turns = list.lock().unwrap_or_else(PoisonError::into_inner);
        turns.insert(id, (key, stop.clone()));
        Self {
            list: Arc::clone(list),
            id,
            stop,
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut turns = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        turns.remove(&self.id);
    }
}

/// What a turn works with.
struct Work {
    caller: Caller,
    key: SessionKey,
    session: String,
    id: Uuid,
    at: ModelAt,
    tools: Option<Box<RawValue>>,
    parameters: Vec<(String, Box<RawValue>)>,
    stream: bool,
    dispatch: DispatchRequest,
    progress: mpsc::Sender<Progress>,
}

/// What has been done so far; it is recorded however the turn ends.
#[derive(Default)]
struct Done {
    dispatch: Option<i64>,
    compaction: Option<i64>,
}

impl Service {
    /// Begins a turn: stores the new messages and sets the model to work.
    ///
    /// # Errors
    /// There is no such session, it is closed, a turn runs in it, the messages cannot be appended, there is
    /// nothing to answer or no model, or the database failed. Nothing is stored then.
    pub async fn begin_turn(
        &self,
        caller: Caller,
        session: &str,
        request: TurnRequest<'_>,
        once: Option<&RequestKey>,
    ) -> Result<Running, ServiceError> {
        let key = key(caller, session)?;
        if self.inner.draining.is_cancelled() {
            return Err(ServiceError::ShuttingDown);
        }
        let head = self.load_head(key, session).await?;
        let at = self.inner.summarizer.main.clone();
        let mut at = at.ok_or(ServiceError::ModelNotConfigured)?;
        if let Some(model) = request.model.clone().or_else(|| head.model()) {
            at.model = model;
        }
        let now = self.now();
        let write = BeginTurn {
            id: self.new_id(),
            append: AppendMessages {
                key,
                messages: self.read_messages(&request.messages)?,
                expected_last_seq: None,
                again: crate::storage::Again::No,
                head: None,
                now,
            },
            model: at.model.clone(),
            until: now.plus(self.bounds().lease),
            most: self.limits_of(key.tenant).await.concurrent_turns,
        };
        let bytes = write.append.messages.iter();
        let bytes = bytes.map(|(_, message)| message.body.len()).sum();
        self.admit_bytes(key.tenant, bytes).await?;
        let (progress, deltas) = mpsc::channel(DELTAS);
        let work = Work {
            caller,
            key,
            session: session.to_owned(),
            id: write.id,
            dispatch: DispatchRequest {
                model: Some(at.model.clone()),
                context_window: request.context_window,
                max_output_tokens: request.max_output_tokens,
                reserved_tokens: request
                    .tools
                    .map(|tools| i64::try_from(size::tokens(tools.get())).unwrap_or(i64::MAX)),
                tool_choice: request
                    .parameters
                    .iter()
                    .find(|(name, _)| name == "tool_choice")
                    .and_then(|(_, value)| serde_json::from_str(value.get()).ok()),
                ..DispatchRequest::default()
            },
            at,
            tools: request.tools.map(ToOwned::to_owned),
            parameters: request
                .parameters
                .iter()
                .map(|(name, value)| (name.clone(), (*value).to_owned()))
                .collect(),
            stream: request.stream,
            progress,
        };
        let (sender, begun) = oneshot::channel();
        let (finished, end) = oneshot::channel();
        let (service, session) = (self.clone(), session.to_owned());
        let once = once.cloned();
        // From here on the client may go away.
        let run = async move {
            let begun = service.store_begin(write, &session, once).await;
            let runs = begun.as_ref().is_ok_and(|turn| turn.row.ended_at.is_none());
            drop(sender.send(begun));
            if runs {
                drop(finished.send(Box::pin(service.run_turn(work)).await));
            }
        };
        let run = self.inner.tasks.track_future(run.in_current_span());
        self.inner.runtime.spawn(run);
        let begun = begun
            .await
            .map_err(|_| ServiceError::Internal("a turn ended without a beginning"))??;
        Ok(Running {
            begun,
            progress: deltas,
            end,
        })
    }

    async fn store_begin(
        &self,
        write: BeginTurn,
        session: &str,
        once: Option<RequestKey>,
    ) -> Result<Turn, ServiceError> {
        let most = write.most;
        let bodies = write.append.messages.iter();
        let bodies: Vec<_> = bodies.map(|(_, message)| message.body.clone()).collect();
        let Begun { turn, appended } = match self.begin_once(write, once).await? {
            Ok(begun) => *begun,
            Err(TurnRefusal::NothingToAnswer) => return Err(ServiceError::NothingToAnswer),
            Err(TurnRefusal::Full) => return Err(self.turns_full(most)),
            Err(TurnRefusal::Append(refusal)) => return Err(append_refused(refusal, session)),
        };
        if !bodies.is_empty() {
            let bytes = bodies.iter().map(String::len).sum();
            self.inner.metrics.count_append(bodies.len(), bytes);
        }
        let messages = appended.stored.into_iter().zip(bodies);
        let messages = messages
            .map(|(stored, body)| ListedMessage::stored(stored, body, appended.compact_size));
        Ok(Turn {
            row: turn,
            messages: messages.collect(),
            compaction: None,
        })
    }

    /// Runs a turn to its end, and stores that.
    #[tracing::instrument(level = "debug", name = "turn", skip_all, fields(
        session = work.session, turn = ids::turn_id(work.id), model = work.at.model
    ))]
    async fn run_turn(&self, work: Work) -> Result<Turn, ServiceError> {
        let listed = Listed::new(&self.inner.turns, work.id, work.key);
        let mut done = Done::default();
        let answered = {
            let ask = AssertUnwindSafe(self.ask(&work, &mut done)).catch_unwind();
            tokio::select! {
                answered = ask => answered
                    .unwrap_or(Err(ServiceError::Internal("a turn panicked"))),
                () = self.keep_turn(&work) => Err(ServiceError::TurnOver),
                () = listed.stop.cancelled() => Err(ServiceError::TurnOver),
            }
        };
        let outcome = match &answered {
            Ok(answer) => Ok(answer.clone()),
            Err(error) => Err(Failure {
                code: error.failure_code(),
                detail: error.to_string(),
            }),
        };
        let end = EndTurn {
            key: work.key,
            id: work.id,
            outcome,
            dispatch: done.dispatch,
            compaction: done.compaction,
            now: self.now(),
        };
        let ended = match self.database().write(end.clone()).await {
            Ok(ended) => ended,
            // The model's failure says more than that it could not be written down.
            Err(_) if answered.is_err() => Ended::Over,
            Err(error) => return Err(self.give_up(end, error.into()).await),
        };
        if let Ended::Yes(ended) = &ended {
            self.inner.metrics.count_turn(&ended.0.status);
        }
        if matches!(
            (&answered, &ended),
            (Err(ServiceError::TurnOver), Ended::Over)
        ) {
            self.inner.metrics.count_turn("cancelled");
        }
        if let Err(error) = &answered {
            telemetry::mark_failed(&tracing::Span::current(), error.failure_code());
            // Nobody may be there any more to be told.
            tracing::info!(
                session = work.session,
                turn = ids::turn_id(work.id),
                code = error.failure_code(),
                "a turn failed"
            );
        }
        match (answered, ended) {
            (Err(ServiceError::TurnOver), _) | (Ok(_), Ended::Over) => {
                Err(self.why_over(&work).await)
            }
            (Err(error), _) => Err(error),
            (Ok(_), Ended::Yes(ended)) => {
                let (row, ..) = *ended;
                if row.status == "failed" {
                    return Err(ServiceError::SessionClosed);
                }
                self.show_turn(work.key, row).await
            }
        }
    }

    /// Ends a turn whose answer could not be stored, so that its session does not wait for it. Gives why.
    async fn give_up(&self, end: EndTurn, error: ServiceError) -> ServiceError {
        let failed = EndTurn {
            outcome: Err(Failure {
                code: error.failure_code(),
                detail: "The model's answer could not be stored; send a turn without messages to try again."
                    .to_owned(),
            }),
            now: self.now(),
            ..end
        };
        if let Err(error) = self.database().write(failed).await {
            tracing::warn!(%error, "a turn could not be ended; its time runs out by itself");
        }
        error
    }

    /// Why a turn ended before it was answered.
    async fn why_over(&self, work: &Work) -> ServiceError {
        match self.database().find_turn(work.key, work.id).await {
            Ok(None) => ServiceError::session_not_found(&work.session),
            Ok(Some(row)) if row.error_code.as_deref() == Some(INTERRUPTED) => {
                ServiceError::TurnInterrupted
            }
            Ok(Some(_)) => ServiceError::TurnOver,
            Err(error) => error.into(),
        }
    }

    /// Renews a turn's time for as long as it holds its session; ends when it does not any more.
    async fn keep_turn(&self, work: &Work) {
        let lease = self.bounds().lease;
        loop {
            tokio::time::sleep(lease / 3).await;
            let renew = RenewTurn {
                key: work.key,
                id: work.id,
                until: self.now().plus(lease),
            };
            match self.database().write(renew).await {
                Ok(true) => {}
                Ok(false) => return,
                // It may still hold; the end decides.
                Err(error) => tracing::warn!(%error, "a turn could not be renewed"),
            }
        }
    }

    async fn ask(&self, work: &Work, done: &mut Done) -> Result<Answer, ServiceError> {
        let first = self
            .dispatch(work.caller, &work.session, &work.dispatch, None)
            .await?;
        done.dispatch = Some(first.n);
        let before = first.tokens.after;
        let shown = first.compaction.map_or(0, |(version, _)| version);
        let refusal = match self.call(work, first, true).await {
            Err(ServiceError::ModelFailed(refusal @ ProviderError::Overflow { .. })) => refusal,
            outcome => return self.to_answer(outcome?),
        };
        let mut overflow = Overflow::of(&refusal, before);
        let smaller = self
            .make_smaller(work, (before, shown), done, &mut overflow)
            .await?;
        let Some(smaller) = smaller else {
            return Err(ServiceError::ContextOverflow(Box::new(overflow)));
        };
        done.dispatch = Some(smaller.n);
        overflow.after = Some(smaller.tokens.after);
        // Who cannot be told that it begins anew, for not reading, gets no more than the end.
        let turn = ids::turn_id(work.id);
        let restarted = format!(r#"{{"turnId":"{turn}","restarted":true}}"#);
        self.inner.hub.publish_delta(work.key, &restarted);
        let told = work.progress.try_send(Progress::Restart).is_ok();
        match self.call(work, smaller, told).await {
            Err(ServiceError::ModelFailed(refusal @ ProviderError::Overflow { .. })) => {
                let again = Overflow::of(&refusal, before);
                overflow.prompt_tokens = again.prompt_tokens.or(overflow.prompt_tokens);
                overflow.window = again.window.or(overflow.window);
                Err(ServiceError::ContextOverflow(Box::new(overflow)))
            }
            outcome => self.to_answer(outcome?),
        }
    }

    /// Sends a dispatch to the model; what comes of it is handed on to the client if it is to be.
    async fn call(
        &self,
        work: &Work,
        dispatched: Dispatched,
        hand_on: bool,
    ) -> Result<TurnAnswer, ServiceError> {
        let mut messages = dispatched.rendered.messages;
        if let Some(rest) = dispatched.rendered.rest {
            read_rest(&mut messages, rest).await?;
        }
        let request = ModelRequest {
            model: work.at.model.clone(),
            messages,
            tools: work.tools.clone(),
            parameters: work.parameters.clone(),
            max_output: None,
            stream: work.stream,
        };
        let (hub, key) = (Arc::clone(&self.inner.hub), work.key);
        let turn = ids::turn_id(work.id);
        let mut hand_on = hand_on.then(|| into_channel(work.progress.clone()));
        let stream = work.stream;
        let mut hand = move |delta: &RawValue| {
            hub.publish_delta(
                key,
                &format!(r#"{{"turnId":"{turn}","delta":{}}}"#, delta.get()),
            );
            if let Some(hand_on) = &mut hand_on {
                hand_on(delta);
            }
        };
        let on_delta = move |delta: &RawValue| {
            if stream {
                hand(delta);
            }
        };
        self.ask_model(&work.at, request, on_delta)
            .await
            .map_err(ServiceError::ModelFailed)
    }

    /// The model's answer as a message that can be stored.
    fn to_answer(&self, answer: TurnAnswer) -> Result<Answer, ServiceError> {
        let malformed = |what| ServiceError::ModelFailed(ProviderError::Malformed { what });
        if answer.message.len() > self.bounds().message_bytes {
            return Err(ServiceError::ModelFailed(ProviderError::TooLarge));
        }
        json::check_text(answer.message.as_bytes())
            .map_err(|_| malformed("its message is no JSON that can be stored"))?;
        let mut message = self
            .read_message(&answer.message, 0)
            .map_err(|_| malformed("its message is none"))?;
        if message.role != Role::Assistant {
            return Err(malformed("its message is not an assistant's"));
        }
        // Whatever the provider put there is not the service's.
        message.annotations = Annotations {
            usage: answer.usage.clone(),
            incomplete: answer.incomplete,
            ..Annotations::default()
        };
        Ok(Answer {
            message: (ids::message_id(self.new_id()), message),
            finish: answer.finish,
            usage: answer.usage.map(|usage| usage.get().to_owned()),
            incomplete: answer.incomplete,
        })
    }

    /// Stops a turn; one that is over stays as it is.
    ///
    /// # Errors
    /// There is no such session or turn, or the database failed.
    pub async fn cancel_turn(
        &self,
        caller: Caller,
        session: &str,
        id: &str,
    ) -> Result<Turn, ServiceError> {
        let key = key(caller, session)?;
        self.load_head(key, session).await?;
        let not_found = || ServiceError::TurnNotFound { id: shorten(id) };
        let uuid = ids::parse_turn_id(id).ok_or_else(not_found)?;
        let cancel = CancelTurn {
            key,
            id: uuid,
            now: self.now(),
        };
        let row = self.database().write(cancel).await?.ok_or_else(not_found)?;
        self.stop_turns(|turn, _| turn == uuid);
        self.show_turn(key, row).await
    }

    /// Stops those of the turns that run here; elsewhere a turn notices by itself that it is over.
    pub(super) fn stop_turns(&self, which: impl Fn(Uuid, SessionKey) -> bool) {
        let turns = &self.inner.turns;
        let turns = turns.lock().unwrap_or_else(PoisonError::into_inner);
        for (id, (session, stop)) in turns.iter() {
            if which(*id, *session) {
                stop.cancel();
            }
        }
    }

    /// A turn with its messages.
    pub(super) async fn show_turn(
        &self,
        key: SessionKey,
        row: TurnRow,
    ) -> Result<Turn, ServiceError> {
        let messages = match (row.first_seq, row.last_seq) {
            (Some(first), Some(last)) => self.messages_between(key, first, last).await?,
            _ => Vec::new(),
        };
        let compaction = match row.compaction {
            Some(version) => self.database().find_compaction(key, version).await?,
            None => None,
        };
        Ok(Turn {
            row,
            messages,
            compaction,
        })
    }
}

/// The rest of a large context, in memory: the model server is sent it in one piece.
async fn read_rest(messages: &mut String, mut rest: TailReader) -> Result<(), ServiceError> {
    while rest.next(messages).await? {}
    Ok(())
}

//! Finding the landmarks of a plan by look-ups in the index, never by reading the history.
//!
//! What the landmarks mean is `domain::plan`'s; here is only how to find them. The greedy point is
//! found by bisection over `seq`: some twenty look-ups for a million messages.

use super::sessions::SessionRow;
use super::{Database, Result, SessionKey, reading};
use crate::domain::budget::{Sized, Usage};
use crate::domain::plan::{Boundary, Candidates, Cut, Landmarks, PlanRequest, plan_target};

/// A message as the place of a cut before it.
#[derive(Debug, Clone, Copy, sqlx::FromRow)]
struct Place {
    seq: i64,
    position: i64,
    length_before: i64,
    tokens_before: i64,
    bytes_before: i64,
    last_seq: Option<i64>,
}

impl Place {
    fn cut(self) -> Cut {
        Cut {
            position: self.position,
            last_seq: self.last_seq.unwrap_or(0),
            length: self.length_before,
            tokens: self.tokens_before,
            bytes: self.bytes_before,
        }
    }
}

/// A greedy point that was found by other means than the percentage.
#[derive(Debug, Clone, Copy)]
pub struct Aim(pub Option<i64>);

/// What kind of message a cut stands before.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Any with a position.
    Any,
    /// The start of a turn.
    Turn,
    /// The start of a group.
    Group,
    /// An assistant message, or the first item of one.
    Assistant,
}

macro_rules! place {
    ($where:literal, $order:literal) => {
        concat!(
            "SELECT seq, position, length_before, tokens_before, bytes_before, \
             (SELECT max(seq) FROM messages AS earlier WHERE earlier.tenant_id = $1 \
              AND earlier.session_id = $2 AND earlier.seq < messages.seq \
              AND earlier.position IS NOT NULL) AS last_seq \
             FROM messages WHERE tenant_id = $1 AND session_id = $2 AND seq >= $3 AND seq <= $4 \
             AND position IS NOT NULL ",
            $where,
            " ORDER BY seq ",
            $order,
            " LIMIT 1 OFFSET $5"
        )
    };
}

/// A look-up: the first or last message of a kind within a range of `seq`, or the nth such.
#[derive(Debug, Clone, Copy)]
struct Lookup {
    kind: Kind,
    from: i64,
    to: i64,
    newest_first: bool,
    skip: i64,
}

impl Database {
    async fn find_place(&self, key: SessionKey, lookup: Lookup) -> Result<Option<Place>> {
        let text = match (lookup.kind, lookup.newest_first) {
            (Kind::Any, false) => place!("", "ASC"),
            (Kind::Any, true) => place!("", "DESC"),
            (Kind::Turn, false) => place!("AND starts_turn", "ASC"),
            (Kind::Turn, true) => place!("AND starts_turn", "DESC"),
            (Kind::Group, false) => place!("AND starts_group", "ASC"),
            (Kind::Group, true) => place!("AND starts_group", "DESC"),
            (Kind::Assistant, false) => place!("AND role = 'assistant' AND starts_group", "ASC"),
            (Kind::Assistant, true) => place!("AND role = 'assistant' AND starts_group", "DESC"),
        };
        Ok(reading!(self, pool => sqlx::query_as(text)
            .bind(key.tenant.0)
            .bind(key.session)
            .bind(lookup.from)
            .bind(lookup.to)
            .bind(lookup.skip)
            .fetch_optional(pool)
            .await)?)
    }

    async fn find_first(
        &self,
        key: SessionKey,
        kind: Kind,
        from: i64,
        to: i64,
    ) -> Result<Option<Place>> {
        let lookup = Lookup {
            kind,
            from,
            to,
            newest_first: false,
            skip: 0,
        };
        self.find_place(key, lookup).await
    }

    /// The smallest place behind the tail's first message whose running length reaches `length`.
    async fn find_greedy_point(
        &self,
        key: SessionKey,
        first: Place,
        last_seq: i64,
        length: i64,
    ) -> Result<Option<Place>> {
        // No place at or before `low` reaches; every place at or behind `high` does, `found` the first known.
        let (mut low, mut high, mut found) = (first.seq, last_seq + 1, None);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match self.find_first(key, Kind::Any, middle, high - 1).await? {
                Some(place) if place.length_before >= length => {
                    high = middle;
                    found = Some(place);
                }
                Some(place) => low = place.seq,
                None => high = middle,
            }
        }
        Ok(found)
    }

    /// The sizes of the tail's messages for a budget, without their bodies.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn load_sizes(&self, key: SessionKey, session: &SessionRow) -> Result<Vec<Sized>> {
        let rows: Vec<(i64, String, i64, Option<String>)> = reading!(self, pool => sqlx::query_as(
                "SELECT seq, role, tokens, usage FROM messages WHERE tenant_id = $1 AND session_id = $2 \
                 AND seq > $3 AND seq <= $4 AND position IS NOT NULL ORDER BY seq"
            )
            .bind(key.tenant.0)
            .bind(key.session)
            .bind(session.compact_seq)
            .bind(session.last_seq)
            .fetch_all(pool)
            .await)?;
        let sized = |(seq, role, tokens, usage): (i64, String, i64, Option<String>)| Sized {
            seq,
            is_assistant: role == "assistant",
            tokens,
            usage: usage.as_deref().and_then(Usage::read),
        };
        Ok(rows.into_iter().map(sized).collect())
    }

    /// The landmarks of a session's history for a plan, as it stood at `session`. Without `aim` the
    /// greedy point follows from the percentage; with it, it is the message of that `seq`, or none.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn find_landmarks(
        &self,
        key: SessionKey,
        session: &SessionRow,
        request: &PlanRequest,
        aim: Option<Aim>,
    ) -> Result<Landmarks> {
        let (front, last) = (session.compact_seq + 1, session.last_seq);
        let summary = session.compact_summary.as_deref().map_or(0, |summary| {
            i64::try_from(crate::domain::size::units(summary)).unwrap_or(i64::MAX)
        });
        let tail = session.tail()?;
        let end_seq = self.find_place(
            key,
            Lookup {
                kind: Kind::Any,
                from: 0,
                to: last,
                newest_first: true,
                skip: 0,
            },
        );
        let end = Cut {
            position: session.position_count,
            last_seq: end_seq.await?.map_or(0, |place| place.seq),
            length: session.history_length,
            tokens: session.history_tokens,
            bytes: session.history_bytes,
        };
        let mut landmarks = Landmarks {
            from: session.compact_size,
            end,
            protected_from: end.position,
            end_is_allowed: request.keep_recent_turns == 0
                && match request.boundary {
                    Boundary::Turn => !tail.turn_is_open(),
                    Boundary::Step => tail.group_is_complete(),
                },
            turn_is_open: tail.turn_is_open(),
            regular: Candidates::default(),
            steps: Candidates::default(),
        };
        let Some(first) = self.find_first(key, Kind::Any, front, last).await? else {
            return Ok(landmarks);
        };
        let mut protected_seq = last;
        if request.keep_recent_turns > 0 {
            let protected = self
                .find_place(
                    key,
                    Lookup {
                        kind: Kind::Turn,
                        from: 0,
                        to: last,
                        newest_first: true,
                        skip: request.keep_recent_turns - 1,
                    },
                )
                .await?;
            landmarks.protected_from = protected.map_or(0, |place| place.position);
            protected_seq = protected.map_or(0, |place| place.seq);
        }
        let greedy = match aim {
            Some(Aim(None)) => None,
            Some(Aim(Some(seq))) => self.find_first(key, Kind::Any, seq, last).await?,
            None => {
                let tail_length = session.history_length - session.compact_length;
                let target = plan_target(summary, tail_length, request.compact_count);
                let length = session.compact_length + target;
                self.find_greedy_point(key, first, last, length).await?
            }
        };
        let kind = match request.boundary {
            Boundary::Turn => Kind::Turn,
            Boundary::Step => Kind::Group,
        };
        let behind_first = first.seq + 1;
        landmarks.regular = self
            .find_candidates(key, kind, greedy, behind_first, last, protected_seq)
            .await?;
        if let Some(assistant) = self.find_first(key, Kind::Assistant, front, last).await? {
            landmarks.steps = self
                .find_candidates(key, Kind::Assistant, greedy, assistant.seq + 1, last, last)
                .await?;
        }
        Ok(landmarks)
    }

    async fn find_candidates(
        &self,
        key: SessionKey,
        kind: Kind,
        greedy: Option<Place>,
        from: i64,
        last: i64,
        limit: i64,
    ) -> Result<Candidates> {
        let after = match greedy {
            Some(greedy) => {
                self.find_first(key, kind, greedy.seq.max(from), last)
                    .await?
            }
            None => None,
        };
        let before = self
            .find_place(
                key,
                Lookup {
                    kind,
                    from,
                    to: limit,
                    newest_first: true,
                    skip: 0,
                },
            )
            .await?;
        Ok(Candidates {
            after: after.map(Place::cut),
            before: before.map(Place::cut),
        })
    }
}

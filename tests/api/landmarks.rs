//! The look-ups of the storage find the same landmarks as a walk over the whole history does.

use std::time::Duration;

use precis::domain::message::{Message, Role};
use precis::domain::pairing::{Counters, Tail, place};
use precis::domain::plan::{Boundary, Landmarks, Mark, PlanRequest, plan_cut};
use precis::domain::size::units;
use precis::service::parse_session_id;
use precis::storage::{Database, Options, SessionKey, TenantId, Url};
use rstest::rstest;
use serde_json::json;

use crate::support::messages::{a, calls, r, system, u};
use crate::support::{Backend, TestApp};

pub const OPTIONS: Options = Options {
    max_connections: 2,
    readers: 2,
    acquire_timeout: Duration::from_secs(5),
    busy_timeout: Duration::from_secs(5),
    synced: true,
};

/// Some hundred messages of every kind, the same in every run.
fn history() -> Vec<String> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below).expect("small")
    };
    let mut messages = vec![a(30), a(0)];
    for _ in 0..60 {
        messages.push(u(next(400)));
        if next(5) == 0 {
            messages.push(u(next(40)));
        }
        for step in 0..next(6) {
            messages.push(calls(&["c1", "c2"], next(50)));
            messages.push(r("c2", next(900)));
            if next(9) == 0 {
                messages.push(system(&format!("note {step}")));
            }
            if next(7) > 0 {
                messages.push(r("c1", next(90)));
            }
        }
        if next(4) > 0 {
            messages.push(a(next(300)));
        }
    }
    messages
}

fn marks(messages: &[String]) -> (Vec<Mark>, Tail) {
    let named = messages.iter().enumerate().map(|(index, text)| {
        let message = Message::read(text).expect("a message");
        (index.to_string(), message)
    });
    let placement = place(Counters::default(), Tail::default(), named.collect()).expect("it fits");
    let marks = placement.rows.iter().filter(|row| row.position.is_some());
    let marks = marks.map(|row| Mark {
        seq: row.seq,
        length: i64::try_from(row.message.size.units).expect("small"),
        starts_turn: row.starts_turn,
        starts_group: row.starts_group,
        is_assistant: row.message.role == Role::Assistant,
    });
    (marks.collect(), placement.tail)
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn look_ups_and_a_walk_find_the_same(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let url = Url::parse(&app.database.url).expect("a database URL");
    let database = Database::open(&url, &OPTIONS).await.expect("it opens");
    let all = history();
    let mut compared = 0;
    for length in [1, 2, 3, 9, all.len() / 2, all.len()] {
        let messages = &all[..length];
        let id = app.create_with(messages).await;
        let (marks, tail) = marks(messages);
        for round in 0..4 {
            let key = SessionKey {
                tenant: TenantId(1),
                session: parse_session_id(&id).expect("an id"),
            };
            let session = database
                .find_session(key)
                .await
                .expect("a row")
                .expect("it is there");
            let summary = session.compact_summary.as_deref().map_or(0, units);
            for percent in [1, 10, 50, 90, 99] {
                for keep in [0, 1, 2, 7] {
                    for boundary in [Boundary::Turn, Boundary::Step] {
                        let request = PlanRequest {
                            compact_count: percent,
                            keep_recent_turns: keep,
                            boundary,
                        };
                        let found = database.find_landmarks(key, &session, &request, None).await;
                        let found = found.expect("landmarks");
                        let walked = Landmarks::of(
                            &marks,
                            session.compact_size,
                            i64::try_from(summary).expect("small"),
                            &request,
                            tail.turn_is_open(),
                            tail.group_is_complete(),
                        );
                        let place = |landmarks: &Landmarks| {
                            plan_cut(landmarks, keep, session.compact_length)
                                .map(|cut| (cut.position, cut.last_seq, cut.length))
                        };
                        assert_eq!(
                            place(&found),
                            place(&walked),
                            "length {length}, round {round}, {request:?}"
                        );
                        compared += 1;
                    }
                }
            }
            app.compact(&id, &json!({"compactCount": 25, "boundary": "step"}))
                .await
                .expect(200);
        }
    }
    assert_eq!(compared, 6 * 4 * 40);
    database.close().await;
}

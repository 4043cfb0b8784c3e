//! The whole truth about one session, compared with what the contract says it is: the pointer, the
//! chain, the coverage of every message, and the context byte for byte.

use serde_json::Value;

use super::http::Http;
use super::messages;
use super::oracle::{History, Request, Shown};
use super::strict::{self, Expectation};

/// Panics unless the session is exactly what its history and its chain make of it. The chain is one
/// that has only ever grown: what restoring, rewinding and erasing do to it is for `shadow`.
pub async fn check(http: &Http, id: &str, history: &History, what: &str) -> Value {
    let session = check_context(http, id, history, what).await;
    let records = http.compactions(id).await;
    check_chain(&records, &session, what);
    session
}

/// Panics unless the context is exactly what the history and the session's pointer make of it.
pub async fn check_context(http: &Http, id: &str, history: &History, what: &str) -> Value {
    let session = http.session(id).await;
    let size = compact_size(&session);
    let summary = session["compactSummary"].as_str();
    assert_eq!(
        size > 0,
        summary.is_some(),
        "{what}: a pointer and a summary come together"
    );
    assert_eq!(
        session["historyLength"],
        history.length(),
        "{what}: `historyLength` is the sum over all but the instructions"
    );
    let context = http.context(id).await;
    assert_eq!(
        context.session_id, id,
        "{what}: the context names its session"
    );
    assert_eq!(
        session["lastSeq"], context.last_seq,
        "{what}: the context is up to the newest message"
    );
    strict::check(
        &context,
        &Expectation {
            history,
            size,
            summary,
        },
        what,
    );
    let expected = history.render(size, summary);
    let raws = messages::raws(&context.messages);
    assert_eq!(
        raws.len(),
        expected.len(),
        "{what}: expected each message behind pointer {size} once, and nothing else"
    );
    for (index, (raw, expected)) in raws.iter().zip(&expected).enumerate() {
        match expected {
            Shown::Stored(stored) => {
                assert_eq!(
                    raw, stored,
                    "{what}: message {index} of the context, byte for byte"
                );
            }
            Shown::Made(made) => {
                let shown: Value = serde_json::from_str(raw).expect("a message");
                assert_eq!(shown, *made, "{what}: message {index} of the context");
            }
        }
    }
    session
}

/// Positions `[0, compactSize)` are covered by contiguous ranges, each built on the one before.
#[track_caller]
fn check_chain(records: &[Value], session: &Value, what: &str) {
    let mut covered = 0;
    for (index, record) in records.iter().enumerate() {
        assert_eq!(
            record["version"],
            index + 1,
            "{what}: versions count up from 1 without a gap: {records:#?}"
        );
        assert_eq!(
            record["basedOn"].as_u64().unwrap_or(0),
            index as u64,
            "{what}: each version is based on the one before: {record:#}"
        );
        assert_eq!(
            record["from"], covered,
            "{what}: each range starts where the one before ended: {record:#}"
        );
        let to = record["to"].as_u64().unwrap_or(0);
        assert!(to > covered, "{what}: a range covers something: {record:#}");
        covered = to;
    }
    assert_eq!(
        session["compactSize"], covered,
        "{what}: the pointer is the end of the newest range"
    );
    assert_eq!(
        session["compactionVersion"],
        records.len(),
        "{what}: the session's version is the newest one"
    );
    if let Some(newest) = records.last() {
        assert_eq!(
            session["compactSummary"], newest["summary"],
            "{what}: the session's summary is the newest version's"
        );
    }
}

#[track_caller]
pub fn compact_size(session: &Value) -> usize {
    let size = session["compactSize"].as_u64();
    let size = size.unwrap_or_else(|| panic!("a session has a compactSize: {session:#}"));
    usize::try_from(size).expect("a small number")
}

/// Compacts by the request, compares with the oracle, and says whether anything was done.
pub async fn compact_and_check(
    http: &Http,
    id: &str,
    history: &History,
    request: Request,
    what: &str,
) -> bool {
    let before = http.session(id).await;
    let size = compact_size(&before);
    let summary = before["compactSummary"]
        .as_str()
        .map_or(0, super::oracle::units);
    let plan = history.plan(size, summary, request);
    let what = format!("{what}, {request:?} at pointer {size}");

    let answer = http.compact(id, &request.body()).await.expect(200).json();
    let expected = plan.size_after(size);
    assert_eq!(answer["newSize"], expected, "{what}: newSize in {answer:#}");
    assert_eq!(
        answer["compactedCount"],
        expected - size,
        "{what}: compactedCount"
    );
    assert_eq!(
        answer["alreadyUpToDate"],
        expected == size,
        "{what}: alreadyUpToDate"
    );
    assert!(
        plan.reasons().contains(&answer["reason"].as_str()),
        "{what}: expected one of the reasons {:?}, got {}",
        plan.reasons(),
        answer["reason"]
    );
    assert_eq!(answer["sessionId"], id, "{what}: sessionId");
    let after = check(http, id, history, &what).await;
    assert_eq!(
        answer["session"], after,
        "{what}: the answer holds the whole session as it is now"
    );
    if expected == size {
        assert_eq!(
            after["compactSummary"], before["compactSummary"],
            "{what}: nothing was compacted, so the summary stays"
        );
    }
    expected > size
}

//! Bytes that a tenant stores.

use rstest::rstest;
use serde_json::{Value, json};

use super::until;
use crate::support::messages::user;
use crate::support::{Backend, Reply, TestApp};

/// The refusal, which says how to come back.
#[track_caller]
fn full(reply: &Reply) {
    let problem = reply.problem(403, "STORAGE_QUOTA_EXCEEDED");
    let detail = problem["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("`storedBytes` of 20000 "), "{reply}");
    assert!(detail.contains("Delete sessions"), "{reply}");
    assert_eq!(reply.header("retry-after"), None, "time does not heal it");
}

fn text(bytes: usize) -> String {
    user(&"x".repeat(bytes))
}

/// Items count as they came, whatever a context shows of them, until they are deleted.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn items_count_with_what_no_context_shows(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::with(backend, &[("PRECIS_TENANTS__STORED_BYTES", "20000")]).await;
    let made = app.post("/v1/conversations", &json!({})).await.expect(200);
    let id = made.json()["id"].as_str().expect("an id").to_owned();
    let path = format!("/v1/conversations/{id}/items");
    let item = json!({"type": "something_new", "data": "x".repeat(12_000)});
    let body = json!({ "items": [item] });
    let first = app.post(&path, &body).await.expect(200).json();
    app.post(&path, &json!({"items": [{"role": "user", "content": "a"}]}))
        .await
        .expect(200);
    full(&app.post(&path, &body).await);
    full(&app.post("/v1/conversations", &body).await);
    full(&app.fork(&id, &json!({})).await);
    let used = |tenant: Value| tenant["usedBytes"].as_u64().expect("bytes");
    let tenant = app.get("/admin/tenants/default").await.expect(200).json();
    assert!((12_000..13_000).contains(&used(tenant)));

    let item = first["data"][0]["id"].as_str().expect("an id");
    app.delete(&format!("{path}/{item}")).await.expect(200);
    let tenant = app.get("/admin/tenants/default").await.expect(200).json();
    assert!(used(tenant) < 1_000, "an erased item takes no room");
    until(200, || app.post(&path, &body)).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn what_is_more_than_may_be_stored_is_refused_until_something_is_deleted(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::with(backend, &[("PRECIS_TENANTS__STORED_BYTES", "20000")]).await;
    let large = app.create_with(&[text(15_000)]).await;
    let small = app.create_with(&[text(100)]).await;
    let message = format!("[{}]", text(10_000));
    let first: Value = serde_json::from_str(&text(10_000)).expect("JSON");

    full(&app.append_raw(&small, &message).await);
    full(&app.post("/sessions", &json!({"messages": [first]})).await);
    full(&app.fork(&large, &json!({})).await);
    let id = app.history(&small).await.remove(0).id;
    full(&app.replace(&small, &id, &text(10_000)).await);
    assert_eq!(
        app.session(&small).await["lastSeq"],
        1,
        "nothing was stored"
    );
    // What fits is stored, and reading goes on.
    app.append_raw(&small, &format!("[{}]", text(100)))
        .await
        .expect(201);
    app.context(&large).await;
    let tenant = app.get("/admin/tenants/default").await.expect(200).json();
    let used = tenant["usedBytes"].as_u64().expect("bytes");
    assert!((15_200..16_000).contains(&used), "{tenant}");
    // Who comes new to the database counts what is there.
    let second = app.spawn_second().await;
    full(&second.append_raw(&small, &message).await);

    app.delete(&format!("/sessions/{large}")).await.expect(204);
    until(201, || app.append_raw(&small, &message)).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_raised_limit_lets_in_at_once(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::with(backend, &[("PRECIS_TENANTS__STORED_BYTES", "20000")]).await;
    let id = app.create_with(&[text(15_000)]).await;
    let message = format!("[{}]", text(10_000));
    full(&app.append_raw(&id, &message).await);
    let raised = json!({"storedBytes": 30_000});
    app.patch("/admin/tenants/default", &raised)
        .await
        .expect(200);
    app.append_raw(&id, &message).await.expect(201);
    let none = json!({"storedBytes": 0});
    app.patch("/admin/tenants/default", &none).await.expect(200);
    app.append_raw(&id, &message).await.expect(201);
}

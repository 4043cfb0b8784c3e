//! `/admin/keys`: making, listing, revoking; and how far an admin's arm reaches.

use rstest::rstest;
use serde_json::json;

use super::{ADMIN, guarded, holder, make_key, until};
use crate::support::messages::user;
use crate::support::{Backend, Http};

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_made_listed_and_revoked(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = guarded(backend).await;
    let admin = app.with_key(ADMIN);
    let body = json!({"tenant": "blue", "name": "ci", "scopes": ["write", "read"], "expiresInSeconds": 3600});
    let reply = admin.post("/admin/keys", &body).await.expect(201);
    assert_eq!(reply.header("cache-control"), Some("no-store"));
    let mut made = reply.json();
    let text = made["key"].as_str().expect("a key").to_owned();
    let id = made["id"].as_str().expect("an id").to_owned();
    assert!(text.starts_with(&format!("precis_{id}_")), "{text}");
    assert_eq!(made["scopes"], json!(["read", "write"]));
    assert!(made["expiresAt"].as_str() > made["createdAt"].as_str());

    let list = admin.get("/admin/keys").await.expect(200);
    let secret = text.rsplit('_').next().expect("a secret");
    assert!(!String::from_utf8_lossy(&list.body).contains(secret));
    made.as_object_mut().expect("an object").remove("key");
    assert_eq!(
        list.json()["data"],
        json!([made]),
        "the list has all but the key"
    );

    let http = app.with_key(&text);
    http.get("/sessions").await.expect(200);
    for _ in 0..2 {
        admin.delete(&format!("/admin/keys/{id}")).await.expect(204);
        // At once where it was revoked.
        http.get("/sessions").await.problem(401, "UNAUTHENTICATED");
    }
    let list = admin.get("/admin/keys").await.expect(200).json();
    assert!(
        list["data"][0]["revokedAt"].is_string(),
        "the row stays: {list}"
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn what_another_process_does_is_taken_up(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = guarded(backend).await;
    let other = app.spawn_second().await;
    let key = make_key(&app, "blue", &["read"]).await;
    let there = Http::new(other.address).with_key(key["key"].as_str().expect("a key"));
    there.get("/sessions").await.expect(200);
    let path = format!("/admin/keys/{}", key["id"].as_str().expect("an id"));
    app.with_key(ADMIN).delete(&path).await.expect(204);
    until(401, "/sessions", &there).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_tenants_admin_manages_its_own_keys_only(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = guarded(backend).await;
    let blue = holder(&app, "blue", &["admin"]).await;
    let reds = make_key(&app, "red", &["read"]).await;
    let id = reds["id"].as_str().expect("an id");

    let foreign = blue.delete(&format!("/admin/keys/{id}")).await;
    let problem = foreign.problem(404, "KEY_NOT_FOUND");
    assert_eq!(problem["detail"], format!("No key `{id}`."));
    let unknown = "0".repeat(32);
    let problem = blue
        .delete(&format!("/admin/keys/{unknown}"))
        .await
        .problem(404, "KEY_NOT_FOUND");
    assert_eq!(problem["detail"], format!("No key `{unknown}`."));
    app.with_key(reds["key"].as_str().expect("a key"))
        .get("/sessions")
        .await
        .expect(200);

    for tenant in ["red", "new", "default"] {
        let body = json!({"tenant": tenant, "name": "x", "scopes": ["read"]});
        blue.post("/admin/keys", &body)
            .await
            .problem(403, "FORBIDDEN");
    }
    for body in [
        json!({"name": "x", "scopes": ["read"]}),
        json!({"tenant": "blue", "name": "x", "scopes": ["read"]}),
    ] {
        let made = blue.post("/admin/keys", &body).await.expect(201).json();
        assert_eq!(made["tenant"], "blue");
    }
    // The scope brings reading and writing with it.
    blue.create(&json!({})).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn keys_come_in_pages(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let app = guarded(backend).await;
    let admin = app.with_key(ADMIN);
    let mut made = Vec::new();
    for number in 0..5 {
        let tenant = if number % 2 == 0 { "blue" } else { "red" };
        made.push(make_key(&app, tenant, &["read"]).await["id"].clone());
    }
    let mut found = Vec::new();
    let mut path = "/admin/keys?limit=2".to_owned();
    loop {
        let page = admin.get(&path).await.expect(200).json();
        let data = page["data"].as_array().expect("keys").clone();
        found.extend(data.iter().map(|key| key["id"].clone()));
        let Some(cursor) = page["nextCursor"].as_str() else {
            break;
        };
        path = format!("/admin/keys?limit=2&cursor={cursor}");
    }
    assert_eq!(found, made, "oldest first, each once");
}

#[rstest]
#[case::no_name(json!({"scopes": ["read"]}), "/name")]
#[case::empty_name(json!({"name": "", "scopes": ["read"]}), "/name")]
#[case::control_character(json!({"name": "a\u{7}b", "scopes": ["read"]}), "/name")]
#[case::no_scopes(json!({"name": "x"}), "/scopes")]
#[case::empty_scopes(json!({"name": "x", "scopes": []}), "/scopes")]
#[case::unknown_scope(json!({"name": "x", "scopes": ["root"]}), "/scopes/0")]
#[case::tenant(json!({"name": "x", "scopes": ["read"], "tenant": "a b"}), "/tenant")]
#[case::no_time(json!({"name": "x", "scopes": ["read"], "expiresInSeconds": 0}), "/expiresInSeconds")]
#[case::too_long(json!({"name": "x", "scopes": ["read"], "expiresInSeconds": 315_360_001}), "/expiresInSeconds")]
#[case::unknown_member(json!({"name": "x", "scopes": ["read"], "secret": "x"}), "/secret")]
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_key_is_refused_by_pointer(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] body: serde_json::Value,
    #[case] pointer: &str,
) {
    let app = guarded(backend).await;
    let admin = app.with_key(ADMIN);
    admin.post("/admin/keys", &body).await.invalid(pointer);
    let list = admin.get("/admin/keys").await.expect(200).json();
    assert_eq!(list["data"], json!([]), "none was made");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_events_ends_with_its_key(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = guarded(backend).await;
    let blue = holder(&app, "blue", &["write"]).await;
    let id = blue.create(&json!({})).await;
    let key = make_key(&app, "blue", &["read"]).await;
    let reader = app.with_key(key["key"].as_str().expect("a key"));
    let mut streams = [
        reader.events(&id, None).await,
        reader.read_events("/events", None).await,
    ];
    blue.append(&id, &[user("before")]).await;
    for stream in &mut streams {
        let told = stream.next().await.expect("an event");
        assert_eq!(told.event, "message.appended");
    }
    let path = format!("/admin/keys/{}", key["id"].as_str().expect("an id"));
    app.with_key(ADMIN).delete(&path).await.expect(204);
    blue.append(&id, &[user("after")]).await;
    for stream in &mut streams {
        assert_eq!(stream.rest().await, [], "nothing more, and an end");
    }
}

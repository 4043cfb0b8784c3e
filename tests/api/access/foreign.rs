//! S32: another tenant's key gets the very answer of an id that there is not, on every route, and changes nothing.

use rstest::rstest;
use serde_json::{Value, json};

use super::{ADMIN, Operation, guarded, holder, make_key, operations};
use crate::support::messages::{a, u, user};
use crate::support::{Backend, Http, Reply, ScriptedModel, TestApp};

const UNKNOWN: &str = "sess_019acf0b2a7c7d1e9f00aabbccddeeff";

/// What a tenant has, one of everything.
struct Estate {
    session: String,
    message: String,
    turn: String,
    key: String,
}

impl Estate {
    async fn of(owner: &Http, key: String) -> Self {
        let agent = json!({"instructions": "Ours."});
        owner.put("/agents/ours", &agent).await.expect(201);
        let session = owner.create(&json!({"agentName": "ours"})).await;
        for number in 0..6 {
            owner
                .append(&session, &[u(600 + number), a(600 + number)])
                .await;
        }
        let turn = json!({"messages": [{"role": "user", "content": "a turn"}]});
        let path = format!("/sessions/{session}");
        let turn = owner
            .post(&format!("{path}/turns"), &turn)
            .await
            .expect(200)
            .json();
        let turn = turn["id"].as_str().or(turn["turn"]["id"].as_str());
        owner.compact(&session, &json!({})).await.expect(200);
        owner.post(&format!("{path}/context"), &json!({})).await;
        let message = owner.history(&session).await.pop().expect("a message").id;
        Self {
            turn: turn.expect("a turn has an id").to_owned(),
            session,
            message,
            key,
        }
    }

    fn fill(&self, operation: &Operation, parameter: &str) -> String {
        match parameter {
            "id" if operation.is_admins() => self.key.clone(),
            "id" => self.session.clone(),
            "conversation_id" => self.session.replace("sess_", "conv_"),
            "messageId" | "item_id" => self.message.clone(),
            "turnId" => self.turn.clone(),
            "version" | "n" => "1".to_owned(),
            "name" if operation.is_admins() => "blue".to_owned(),
            "name" => "ours".to_owned(),
            other => panic!("a route has a parameter `{other}`, which the walk does not know"),
        }
    }

    /// All that can be seen of it.
    async fn seen(&self, owner: &Http) -> Vec<Value> {
        let path = format!("/sessions/{}", self.session);
        let mut seen = Vec::new();
        for part in [
            "",
            "/messages",
            "/context",
            "/compactions",
            "/dispatches",
            "/turns",
            "/stats",
        ] {
            seen.push(owner.get(&format!("{path}{part}")).await.expect(200).json());
        }
        seen.push(owner.get("/agents/ours").await.expect(200).json());
        seen.push(owner.get("/admin/keys").await.expect(200).json());
        seen
    }
}

/// An answer without what any two differ in, and with the ids made the same.
fn alike(reply: &Reply, ids: &[(&str, &str)]) -> (u16, String) {
    let mut body = reply.json();
    if let Some(members) = body.as_object_mut() {
        members.remove("requestId");
    }
    let mut text = body.to_string();
    for (real, unknown) in ids {
        text = text.replace(real, unknown);
    }
    (reply.status, text)
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn another_tenants_things_are_unknown_everywhere(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let app = TestApp::with_model(backend, &model, &[("PRECIS_ADMIN_KEY", ADMIN)]).await;
    let key = make_key(&app, "blue", &["admin"]).await;
    let owner = app.with_key(key["key"].as_str().expect("a key"));
    let estate = Estate::of(&owner, key["id"].as_str().expect("an id").to_owned()).await;
    let stranger = holder(&app, "red", &["admin"]).await;
    let unknown_key = "0".repeat(32);
    let conversation = estate.session.replace("sess_", "conv_");
    let nobodys = UNKNOWN.replace("sess_", "conv_");
    let before = estate.seen(&owner).await;

    let mut walked = 0;
    for operation in operations() {
        if !operation.path.contains('{') {
            continue;
        }
        let at = format!("{} {}", operation.method, operation.path);
        let address = operation.address(|parameter| estate.fill(&operation, parameter));
        if at == "PUT /agents/{name}" {
            // It makes one of its own, of the same name.
            operation.ask(&stranger, &address).await.expect(201);
            stranger.delete("/agents/ours").await.expect(204);
            continue;
        }
        let ids = [
            (estate.session.as_str(), UNKNOWN),
            (conversation.as_str(), nobodys.as_str()),
            (estate.key.as_str(), unknown_key.as_str()),
            ("ours", "nobody"),
            ("blue", "nowhere"),
        ];
        let nowhere = ids
            .iter()
            .fold(address.clone(), |address, (real, unknown)| {
                address.replace(real, unknown)
            });
        assert_ne!(nowhere, address, "{at}");
        let foreign = operation.ask(&stranger, &address).await;
        let unknown = operation.ask(&stranger, &nowhere).await;
        assert_eq!(foreign.status, 404, "{at}: {foreign}");
        assert_eq!(alike(&foreign, &ids), alike(&unknown, &ids), "{at}");
        walked += 1;
    }
    assert!(walked > 30, "there are that many routes: {walked}");
    assert_eq!(estate.seen(&owner).await, before, "nothing has changed");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn lists_and_new_sessions_are_a_tenants_own(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = guarded(backend).await;
    let blue = holder(&app, "blue", &["admin"]).await;
    let red = holder(&app, "red", &["admin"]).await;
    blue.put("/agents/ours", &json!({})).await.expect(201);
    let session = blue.create(&json!({"metadata": {"k": "v"}})).await;
    blue.append(&session, &[user("secret word")]).await;

    for path in ["/agents", "/sessions", "/sessions?metadata.k=v"] {
        let list = red.get(path).await.expect(200).json();
        assert_eq!(list["data"], json!([]), "{path}");
        let own = blue.get(path).await.expect(200).json();
        assert_eq!(own["data"].as_array().map(Vec::len), Some(1), "{path}");
    }
    let keys = red.get("/admin/keys").await.expect(200).json();
    let tenants: Vec<_> = keys["data"]
        .as_array()
        .expect("keys")
        .iter()
        .map(|key| &key["tenant"])
        .collect();
    assert_eq!(tenants, ["red"]);
    red.post("/sessions", &json!({"agentName": "ours"}))
        .await
        .problem(404, "AGENT_NOT_FOUND");
    // A cursor of one tenant is worth nothing to another.
    blue.create(&json!({})).await;
    let page = blue.get("/sessions?limit=1").await.expect(200).json();
    let cursor = page["nextCursor"].as_str().expect("a cursor");
    let reply = red.get(&format!("/sessions?limit=1&cursor={cursor}")).await;
    assert!(
        !String::from_utf8_lossy(&reply.body).contains(&session),
        "{reply}"
    );
    // The server's own key works on the data of `default` alone.
    let list = app
        .with_key(ADMIN)
        .get("/sessions")
        .await
        .expect(200)
        .json();
    assert_eq!(list["data"], json!([]));
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn events_reach_their_own_tenant_only(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = guarded(backend).await;
    let other = app.spawn_second().await;
    let blue = holder(&app, "blue", &["read", "write"]).await;
    let red = holder(&app, "red", &["read", "write"]).await;
    let mut blues = blue.read_events("/events", None).await;
    let mut reds = red.read_events("/events", None).await;
    for _ in 0..3 {
        let theirs = blue.create(&json!({})).await;
        // Through another process as well.
        let mine = Http::new(other.address);
        let mine = holder(&mine, "red", &["write"])
            .await
            .create(&json!({}))
            .await;
        let frame = reds.next().await.expect("an event");
        assert_eq!(frame.data["sessionId"], mine.as_str());
        let frame = blues.next().await.expect("an event");
        assert_eq!(frame.data["sessionId"], theirs.as_str());
    }
}

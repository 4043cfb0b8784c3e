//! What sessions do where neither request nor agent says it is the operator's.

use rstest::rstest;
use serde_json::json;

use super::{EXTRACTIVE, turns, versions};
use crate::support::{Backend, TestApp};

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_request_wins_over_the_agent_and_the_agent_over_the_server(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let settings = [
        EXTRACTIVE,
        ("PRECIS_PRUNING__ENABLED", "on"),
        ("PRECIS_PRUNING__BUDGET_TOKENS", "111"),
        ("PRECIS_PRUNING__HEADROOM", "0.5"),
        ("PRECIS_PRUNING__DROP_STALE_REASONING", "off"),
        ("PRECIS_AUTO_COMPACT__ENABLED", "on"),
        ("PRECIS_AUTO_COMPACT__TRIGGER_TOKENS", "900"),
        ("PRECIS_AUTO_COMPACT__TRIGGER_MESSAGES", "77"),
        ("PRECIS_AUTO_COMPACT__WHEN", "now"),
    ];
    let app = TestApp::with(backend, &settings).await;
    let id = app.create(&json!({})).await;
    let by_server = app.session(&id).await;
    assert_eq!(by_server["pruning"]["enabled"], true);
    assert_eq!(by_server["pruning"]["budgetTokens"], 111);
    assert_eq!(by_server["pruning"]["headroom"], 0.5);
    assert_eq!(by_server["pruning"]["dropStaleReasoning"], false);
    assert_eq!(by_server["pruning"]["keepHeadBytes"], 512);
    let expected = json!({
        "enabled": true, "triggerTokens": 900, "triggerMessages": 77, "when": "now",
        "hardTriggerTokens": null, "cacheTtlSeconds": 300,
    });
    assert_eq!(by_server["autoCompact"], expected);

    let agent = json!({
        "name": "a",
        "pruning": {"budgetTokens": 222},
        "autoCompact": {"triggerTokens": 800, "triggerMessages": null},
    });
    let put = app.put("/agents/a", &agent).await;
    assert!([200, 201].contains(&put.status), "{put}");
    let body = json!({
        "agentName": "a",
        "pruning": {"headroom": 0.25},
        "autoCompact": {"triggerTokens": 700},
    });
    let session = app.session(&app.create(&body).await).await;
    assert_eq!(session["pruning"]["budgetTokens"], 222);
    assert_eq!(session["pruning"]["headroom"], 0.25);
    assert_eq!(session["autoCompact"]["triggerTokens"], 700);
    assert!(session["autoCompact"]["triggerMessages"].is_null());
    assert_eq!(session["autoCompact"]["when"], "now");

    app.append(&id, &turns(8, 300)).await;
    versions(&app, &id, 1).await;
}

//! While there are no keys: this machine is answered, web pages of other sites are not, and the first key ends it.

use precis::app::{Application, StartError};
use precis::config::Settings;
use rstest::rstest;
use serde_json::json;

use super::until;
use crate::support::app::base_variables;
use crate::support::backend::TestDatabase;
use crate::support::{Backend, Http, TestApp, install_crypto};

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn only_this_machine_is_answered(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    for host in [
        "localhost",
        "localhost:1",
        "127.0.0.1",
        "127.1.2.3:80",
        "[::1]:80",
    ] {
        app.get_with("/sessions", &[("host", host)])
            .await
            .expect(200);
    }
    for host in [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "10.0.0.1",
    ] {
        let headers = [("host", host)];
        let reply = app.get_with("/sessions", &headers).await;
        let detail = reply.problem(403, "FORBIDDEN")["detail"].to_string();
        assert!(detail.contains("no keys"), "{detail}");
        app.get_with("/health/live", &headers).await.expect(200);
    }
    // What a proxy says of the host is what anybody may say.
    let forwarded = [("host", "evil.example"), ("x-forwarded-host", "localhost")];
    app.get_with("/sessions", &forwarded).await.expect(403);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn web_pages_of_other_sites_are_not_answered(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let allowed = [("PRECIS_CORS__ALLOWED_ORIGINS", "https://app.example.com")];
    let app = TestApp::with(backend, &allowed).await;
    let own = format!("http://{}", app.address);
    for (origin, status) in [
        (own.as_str(), 200),
        ("http://localhost:3000", 200),
        ("https://app.example.com", 200),
        ("https://evil.example", 403),
        ("http://app.example.com", 403),
        ("null", 403),
        ("", 403),
    ] {
        let headers = [("origin", origin)];
        let reply = app.get_with("/sessions", &headers).await;
        assert_eq!(reply.status, status, "{origin}: {reply}");
    }
    // A form of another site can be sent without being asked about beforehand.
    let headers = [("origin", "https://evil.example")];
    let reply = app
        .send(
            reqwest::Method::POST,
            "/sessions",
            &headers,
            Some(b"{}".to_vec()),
        )
        .await;
    reply.problem(403, "FORBIDDEN");
    let list = app.get("/sessions").await.expect(200).json();
    assert_eq!(list["data"], json!([]), "nothing was made");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn told_so_it_is_answered_under_any_name_but_to_no_foreign_page(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::with(backend, &[("PRECIS_INSECURE_NO_AUTH", "on")]).await;
    let host = ("host", "precis.lan");
    app.get_with("/sessions", &[host]).await.expect(200);
    app.get_with("/sessions", &[host, ("origin", "http://precis.lan")])
        .await
        .expect(200);
    for origin in ["http://evil.example", "http://localhost:3000", "null"] {
        app.get_with("/sessions", &[host, ("origin", origin)])
            .await
            .problem(403, "FORBIDDEN");
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_first_key_closes_the_door_for_good(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let other = app.spawn_second().await;
    other.get("/sessions").await.expect(200);
    let body = json!({"name": "first", "scopes": ["admin"]});
    let made = app.post("/admin/keys", &body).await.expect(201).json();
    assert_eq!(made["tenant"], "default");
    app.get("/sessions").await.problem(401, "UNAUTHENTICATED");
    until(401, "/sessions", &Http::new(other.address)).await;

    let key = app.with_key(made["key"].as_str().expect("a key"));
    // A key is good under any name.
    key.get_with(
        "/sessions",
        &[("host", "precis.lan"), ("origin", "http://x.example")],
    )
    .await
    .expect(200);
    let path = format!("/admin/keys/{}", made["id"].as_str().expect("an id"));
    key.delete(&path).await.expect(204);
    app.get("/sessions").await.problem(401, "UNAUTHENTICATED");
    let again = app.spawn_second().await;
    again.get("/sessions").await.problem(401, "UNAUTHENTICATED");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn without_a_key_it_listens_here_alone(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    install_crypto();
    let database = TestDatabase::create(backend).await;
    let build = async |more: &[(&str, &str)]| {
        let mut all = base_variables(&database.url);
        all.retain(|(name, _)| name != "PRECIS_LISTEN");
        all.push(("PRECIS_LISTEN".to_owned(), "0.0.0.0:0".to_owned()));
        all.extend(
            more.iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        );
        let settings = Settings::from_vars(all).expect("valid settings");
        Application::build(settings)
            .await
            .map(|application| application.banner())
    };
    let refusal = build(&[]).await.expect_err("no keys");
    assert!(matches!(refusal, StartError::NoKeys(_)), "{refusal}");
    let text = refusal.to_string();
    for advice in [
        "0.0.0.0:0",
        "precis keys create",
        "PRECIS_ADMIN_KEY",
        "--insecure-no-auth",
    ] {
        assert!(text.contains(advice), "{advice}: {text}");
    }
    let banner = build(&[("PRECIS_INSECURE_NO_AUTH", "on")])
        .await
        .expect("told so");
    assert!(banner.contains("Keys       none"), "{banner}");
    let banner = build(&[("PRECIS_ADMIN_KEY", super::ADMIN)])
        .await
        .expect("a key");
    assert!(banner.contains("Keys       asked for"), "{banner}");
    assert!(!banner.contains(super::ADMIN));
}

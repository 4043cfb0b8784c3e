//! The OpenAPI document: committed, complete, true to the router in both directions, its examples valid.

use std::path::Path;

use reqwest::Method;
use serde_json::Value;

use crate::support::{Backend, TestApp};

const COMMITTED: &str = "openapi/openapi.json";
const METHODS: [&str; 7] = ["GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "TRACE"];

fn document() -> Value {
    serde_json::from_str(&precis::http::openapi_json()).expect("the document is JSON")
}

/// Every operation with its path and method.
fn operations(document: &Value) -> Vec<(String, String, Value)> {
    let paths = document["paths"].as_object().expect("paths");
    let operation = |path: &str, (method, operation): (&String, &Value)| {
        (
            path.to_owned(),
            method.to_ascii_uppercase(),
            operation.clone(),
        )
    };
    paths
        .iter()
        .flat_map(|(path, item)| {
            let methods = item.as_object().expect("operations").iter();
            methods
                .map(|entry| operation(path, entry))
                .collect::<Vec<_>>()
        })
        .collect()
}

/// A path with every parameter filled in by something that is well-formed and unknown.
fn concrete(path: &str) -> String {
    path.replace("{id}", "sess_019acf0b2a7c7d1e9f00aabbccddeeff")
        .replace("{conversation_id}", "conv_019acf0b2a7c7d1e9f00aabbccddeeff")
        .replace("{messageId}", "msg_none")
        .replace("{item_id}", "msg_none")
        .replace("{version}", "1")
        .replace("{name}", "nobody")
}

#[test]
fn the_committed_document_is_the_one_the_code_makes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(COMMITTED);
    let committed = std::fs::read_to_string(path).expect("the committed document");
    assert!(
        committed == precis::http::openapi_json(),
        "{COMMITTED} is not what the code makes. Write it anew: cargo run --quiet -- openapi > {COMMITTED}"
    );
}

#[test]
fn every_operation_is_described() {
    let document = document();
    assert_eq!(document["openapi"], "3.1.0");
    for (path, method, operation) in operations(&document) {
        let at = format!("{method} {path}");
        for member in ["summary", "description", "operationId"] {
            let text = operation[member].as_str().unwrap_or_default();
            assert!(!text.is_empty(), "{at} has a {member}");
        }
        let responses = operation["responses"].as_object().expect("responses");
        assert!(
            responses.keys().any(|status| status.starts_with('2')),
            "{at} succeeds somehow"
        );
        for (status, response) in responses
            .iter()
            .filter(|(status, _)| status.as_str() >= "400")
        {
            // Under `/v1` errors have the shape that OpenAI's clients read.
            let (kind, problem) = if path.starts_with("/v1/") {
                ("application/json", "#/components/schemas/OpenAiError")
            } else {
                ("application/problem+json", "#/components/schemas/Problem")
            };
            let schema = &response["content"][kind]["schema"]["$ref"];
            assert_eq!(schema, problem, "{at} answers {status} with a problem");
        }
        if let Some(body) = operation.get("requestBody") {
            let media = &body["content"]["application/json"];
            assert!(media.get("example").is_some(), "{at} has an example");
        }
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let text = parameter["description"].as_str().unwrap_or_default();
            assert!(!text.is_empty(), "{at} describes {}", parameter["name"]);
        }
    }
}

#[test]
fn every_reference_of_the_document_leads_somewhere() {
    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(members) => {
                for (name, member) in members {
                    match member.as_str().filter(|_| name == "$ref") {
                        Some(target) => found.push(target.to_owned()),
                        None => references(member, found),
                    }
                }
            }
            Value::Array(elements) => elements.iter().for_each(|e| references(e, found)),
            _ => {}
        }
    }
    let document = document();
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > 50, "the document has references");
    for target in found {
        let pointer = target
            .strip_prefix('#')
            .expect("a reference within the document");
        assert!(
            document.pointer(pointer).is_some(),
            "{target} leads nowhere"
        );
    }
}

#[test]
fn every_example_holds_to_its_schema() {
    let document = document();
    let mut checked = 0;
    for (path, method, operation) in operations(&document) {
        let media = &operation["requestBody"]["content"]["application/json"];
        let (Some(example), Some(target)) =
            (media.get("example"), media["schema"]["$ref"].as_str())
        else {
            continue;
        };
        let mut schema = serde_json::json!({ "$ref": target });
        schema["components"] = document["components"].clone();
        let validator = jsonschema::validator_for(&schema).expect("a sound schema");
        let faults: Vec<_> = validator
            .iter_errors(example)
            .map(|e| e.to_string())
            .collect();
        assert!(faults.is_empty(), "{method} {path}: {faults:?}");
        checked += 1;
    }
    assert_eq!(checked, 16, "every operation with a body was checked");
}

#[tokio::test(flavor = "multi_thread")]
async fn router_and_document_agree() {
    let app = TestApp::spawn(Backend::Sqlite).await;
    let document = document();
    let table = precis::http::route_table();
    assert_eq!(
        table.len(),
        document["paths"].as_object().expect("paths").len()
    );
    for (path, methods) in &table {
        let address = concrete(path);
        for name in METHODS {
            let method: Method = name.parse().expect("a method");
            let reply = app.send(method, &address, &[], None).await;
            let code = serde_json::from_slice::<Value>(&reply.body)
                .map(|body| match body["error"]["code"].as_str() {
                    Some(code) => code.to_ascii_uppercase().into(),
                    None => body["code"].clone(),
                })
                .unwrap_or_default();
            if methods.iter().any(|known| known == name) {
                // The document has it, so the router does: whatever it says, it is not that.
                assert_ne!(code, "METHOD_NOT_ALLOWED", "{name} {path}");
                assert_ne!(code, "ROUTE_NOT_FOUND", "{name} {path}");
                let documented = &document["paths"][path][name.to_ascii_lowercase()]["responses"];
                let status = reply.status.to_string();
                assert!(
                    documented.get(&status).is_some(),
                    "{name} {path} answers {status}, which the document does not have"
                );
            } else {
                // The router has nothing that the document has not.
                assert_eq!(reply.status, 405, "{name} {path}");
                assert_eq!(code, "METHOD_NOT_ALLOWED", "{name} {path}");
                let allow = reply.header("allow").unwrap_or_default();
                assert_eq!(allow, methods.join(", "), "{name} {path}");
            }
        }
    }
    for address in [
        "/sessionss",
        "/docs/errors/x/y",
        "/sessions/x/nothing",
        "/openapi.yaml",
        "/agents/a/b",
    ] {
        let reply = app.get(address).await;
        reply.problem(404, "ROUTE_NOT_FOUND");
    }
}

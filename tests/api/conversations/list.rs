//! Listing items: cursors, limits and both orders.

use rstest::rstest;
use serde_json::json;

use super::{all, append, create, page, user};
use crate::support::{Backend, TestApp};

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn pages_hold_every_item_once_in_either_order(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = create(&app, &json!({})).await;
    let items: Vec<_> = (0..253).map(|n| user(&n.to_string())).collect();
    let ids = append(&app, &id, &items).await.ids();
    for limit in [1, 20, 84, 100] {
        for order in ["asc", "desc"] {
            let mut expected = ids.clone();
            if order == "desc" {
                expected.reverse();
            }
            let mut found = Vec::new();
            let mut pages = 0;
            let mut query =
                format!("order={order}&limit={limit}&include[]=a&include[]=b&include=c");
            loop {
                let list = page(&app, &id, &query).await;
                let read = list.ids();
                assert_eq!(Some(&list.first_id), read.first());
                assert_eq!(Some(&list.last_id), read.last());
                found.extend(read);
                pages += 1;
                if !list.has_more {
                    break;
                }
                query = format!("order={order}&limit={limit}&after={}", list.last_id);
            }
            assert_eq!(found, expected, "{order} {limit}");
            assert_eq!(pages, 253_usize.div_ceil(limit), "{order} {limit}");
        }
    }
    // The newest twenty, unless something else is asked for.
    let list = page(&app, &id, "").await;
    let newest: Vec<_> = ids.iter().rev().take(20).cloned().collect();
    assert_eq!((list.ids(), list.has_more), (newest, true));
    let behind = page(&app, &id, &format!("after={}", ids[0])).await;
    assert!(behind.data.is_empty() && !behind.has_more);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn what_is_deleted_is_left_out_and_its_neighbours_are_found(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = create(&app, &json!({})).await;
    let items: Vec<_> = (0..9).map(|n| user(&n.to_string())).collect();
    let ids = append(&app, &id, &items).await.ids();
    for gone in [1, 2, 3, 6] {
        let path = format!("/v1/conversations/{id}/items/{}", ids[gone]);
        assert_eq!(
            app.delete(&path).await.expect(200).json()["id"],
            id.as_str()
        );
        app.get(&path).await.expect(404);
        app.delete(&path).await.expect(404);
    }
    let left: Vec<_> = [0, 4, 5, 7, 8].map(|at| ids[at].clone()).to_vec();
    for limit in [1, 2, 3] {
        let mut found = Vec::new();
        let mut query = format!("order=asc&limit={limit}");
        loop {
            let list = page(&app, &id, &query).await;
            found.extend(list.ids());
            if !list.has_more {
                break;
            }
            query = format!("order=asc&limit={limit}&after={}", list.last_id);
        }
        assert_eq!(found, left, "{limit}");
    }
    assert_eq!(all(&app, &id).await.len(), 5);
    let context = super::context(&app, &id).await;
    assert_eq!(context.len(), 9, "an erased place stays");
    assert_eq!(context[1], json!({"role": "user", "content": "[erased]"}));
}

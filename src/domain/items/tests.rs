use super::*;
use crate::domain::pairing::{Counters, PairingFault, Placement, Tail, place};

fn chat(item: &str) -> String {
    read(item).unwrap().body
}

fn pointer(item: &str) -> String {
    match read(item).unwrap_err() {
        MessageFault::Shape { pointer, .. } => pointer,
        MessageFault::Json(fault) => fault.to_string(),
    }
}

#[test]
fn messages_become_chat_messages() {
    for (item, expected) in [
        (
            r#"{"role":"user","content":"h\u00e4"}"#,
            r#"{"role":"user","content":"h\u00e4"}"#,
        ),
        (
            r#"{"type":"message","role":"developer","content":[{"type":"input_text","text":"a"}]}"#,
            r#"{"role":"developer","content":"a"}"#,
        ),
        (
            r#"{"role":"assistant","content":[{"type":"output_text","text":"a"},{"type":"output_text","text":"b"}]}"#,
            r#"{"role":"assistant","content":"ab"}"#,
        ),
        (
            r#"{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]}"#,
            r#"{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]}"#,
        ),
        (
            r#"{"role":"user","content":[{"type":"input_text","text":"see"},{"type":"input_image","image_url":"data:image/png;base64,AA","detail":"low"},{"type":"input_image","file_id":"file-1"},{"type":"input_file","file_data":"data:x","filename":"a.pdf"},{"type":"new_kind","x":1}]}"#,
            r#"{"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AA","detail":"low"}},{"type":"text","text":"[input_image: file-1]"},{"type":"file","file":{"file_data":"data:x","filename":"a.pdf"}},{"type":"text","text":"[new_kind]"}]}"#,
        ),
    ] {
        assert_eq!(chat(item), expected);
        assert_eq!(read(item).unwrap().item.as_deref(), Some(item));
    }
}

#[test]
fn calls_outputs_and_reasoning_become_chat_messages() {
    for (item, expected) in [
        (
            r#"{"type":"function_call","call_id":"c","name":"f","arguments":"{\"p\":"}"#,
            r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"p\":"}}]}"#,
        ),
        (
            r#"{"type":"shell_call","call_id":"c","action":{"commands":["ls"]}}"#,
            r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"shell","arguments":"{\"commands\":[\"ls\"]}"}}]}"#,
        ),
        (
            r#"{"type":"function_call_output","call_id":"c","output":"ok"}"#,
            r#"{"role":"tool","tool_call_id":"c","content":"ok"}"#,
        ),
        (
            r#"{"type":"function_call_output","call_id":"c","output":[{"type":"input_text","text":"a"},{"type":"input_image","image_url":"data:image/png;base64,AA"}]}"#,
            r#"{"role":"tool","tool_call_id":"c","content":[{"type":"text","text":"a"},{"type":"text","text":"[input_image]"}]}"#,
        ),
        (
            r#"{"type":"shell_call_output","call_id":"c","output":[{"stdout":"a"}]}"#,
            r#"{"role":"tool","tool_call_id":"c","content":"[{\"stdout\":\"a\"}]"}"#,
        ),
        (
            r#"{"type":"reasoning","summary":[{"type":"summary_text","text":"a"},{"type":"summary_text","text":"b"}],"encrypted_content":"x"}"#,
            r#"{"role":"assistant","reasoning_content":"a\n\nb","content":""}"#,
        ),
        (
            r#"{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"x"}"#,
            "",
        ),
        (
            r#"{"type":"web_search_call","id":"ws_1","status":"completed"}"#,
            "",
        ),
        (r#"{"type":"never_heard_of","call_id":5}"#, ""),
        (r#"{"role":"assistant","content":""}"#, ""),
        (r#"{"role":"assistant","content":null}"#, ""),
        (r#"{"role":"assistant","content":[]}"#, ""),
        (
            r#"{"role":"assistant","content":[{"type":"output_text","text":""},{"type":"refusal","refusal":""}]}"#,
            "",
        ),
        (
            r#"{"role":"assistant","content":[{"type":"output_text","text":"a"},{"type":"output_audio","transcript":"b"}]}"#,
            r#"{"role":"assistant","content":[{"type":"text","text":"a"},{"type":"text","text":"[output_audio]"}]}"#,
        ),
    ] {
        assert_eq!(chat(item), expected);
    }
}

#[test]
fn a_compaction_of_our_own_is_read_and_another_is_told_of() {
    let own = compaction("cmp_1", "Ünion");
    assert_eq!(
        chat(&own),
        r#"{"role":"user","content":"[Summary of previous conversation]\n\nÜnion"}"#
    );
    let other = chat(r#"{"type":"compaction","encrypted_content":"gAAA"}"#);
    assert!(other.contains("only its maker can read"), "{other}");
}

#[test]
fn names_what_is_wrong() {
    assert_eq!(pointer("5"), "");
    assert_eq!(pointer("{}"), "/type");
    assert_eq!(pointer(r#"{"type":7,"role":"user"}"#), "/type");
    assert_eq!(pointer(r#"{"type":"message"}"#), "/role");
    assert_eq!(pointer(r#"{"role":"user","content":{}}"#), "/content");
    assert_eq!(
        pointer(r#"{"type":"function_call","name":"f","arguments":""}"#),
        "/call_id"
    );
    assert_eq!(
        pointer(r#"{"type":"function_call","call_id":"c","name":"f","arguments":{}}"#),
        "/arguments"
    );
    assert_eq!(
        pointer(r#"{"type":"function_call_output","output":""}"#),
        "/call_id"
    );
    assert_eq!(pointer(r#"{"role":"user","id":"a b"}"#), "/id");
    assert!(pointer(r#"{"role":"user","role":"user"}"#).contains("twice"));
}

#[test]
fn an_item_goes_out_with_what_was_missing_and_nothing_else() {
    for (item, expected) in [
        (
            r#"{ "role":"user" , "x":1.0, "content":"h\u00e4"}"#,
            r#"{"id":"msg_1","type":"message","status":"completed", "role":"user" , "x":1.0, "content":[{"type":"input_text","text":"h\u00e4"}]}"#,
        ),
        (
            r#"{"id":null,"type":"message","role":"assistant","content":"a","status":"in_progress"}"#,
            r#"{"id":"msg_1","type":"message","role":"assistant","content":[{"type":"output_text","text":"a","annotations":[]}],"status":"in_progress"}"#,
        ),
        (
            r#"{"type":"function_call_output","call_id":"c","output":"a"}"#,
            r#"{"id":"msg_1","status":"completed","type":"function_call_output","call_id":"c","output":"a"}"#,
        ),
        (
            r#"{"type":"web_search_call","id":"ws_1"}"#,
            r#"{"type":"web_search_call","id":"ws_1"}"#,
        ),
    ] {
        let shown = show(item, "msg_1");
        assert_eq!(shown, expected);
        assert_eq!(show(&shown, "other"), shown);
    }
}

#[test]
fn a_run_is_joined_into_one_message() {
    let texts = [
        r#"{"role":"assistant","reasoning_content":"hm","content":""}"#,
        r#"{"role":"assistant","content":"a"}"#,
        r#"{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]}"#,
        r#"{"role":"assistant","content":"b"}"#,
        r#"{"role":"assistant","content":null,"tool_calls":[{"id":"2"}]}"#,
    ]
    .map(str::to_owned);
    assert_eq!(
        join(&texts),
        r#"{"role":"assistant","reasoning_content":"hm","content":"a\n\nb","tool_calls":[{"id":"1"},{"id":"2"}]}"#
    );
    assert_eq!(join(&texts[..1]), texts[0]);
    let refusal = r#"{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]}"#;
    assert_eq!(
        join(&[texts[1].clone(), refusal.to_owned()]),
        r#"{"role":"assistant","content":[{"type":"text","text":"a"},{"type":"refusal","refusal":"no"}]}"#
    );
}

#[test]
fn a_chat_message_reads_as_items() {
    let body = r#"{"role":"assistant","reasoning_content":"hm","content":"a","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}"#;
    let items = derive("m1", body);
    let ids: Vec<_> = items.iter().map(|item| item.id.as_str()).collect();
    assert_eq!(ids, ["rs-of-m1", "msg-of-m1", "fc-0-of-m1"]);
    assert!(ids.iter().all(|id| row_of(id) == Some("m1")));
    let joined: Vec<_> = items.iter().map(|item| chat(&item.text)).collect();
    assert_eq!(join(&joined), body);
    for body in [
        r#"{"role":"user","content":"a"}"#,
        r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"u","detail":"low"}},{"type":"file","file":{"file_id":"f"}}]}"#,
        r#"{"role":"tool","tool_call_id":"c","content":"a"}"#,
        r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"custom","custom":{"name":"f","input":"x"}}]}"#,
    ] {
        let items = derive("msg_1", body);
        assert_eq!(items.len(), 1);
        assert_eq!(chat(&items[0].text), body);
    }
    assert_eq!(
        derive("m", r#"{"role":"assistant","content":null}"#).len(),
        1
    );
}

fn placed(items: &[&str]) -> Result<Placement, (usize, PairingFault)> {
    let items = items.iter().enumerate();
    let items = items.map(|(index, item)| (format!("i{index}"), read(item).unwrap()));
    place(Counters::default(), Tail::default(), items.collect())
}

const USER: &str = r#"{"role":"user","content":"q"}"#;
const SAYS: &str = r#"{"role":"assistant","content":"done"}"#;
const THINKS: &str = r#"{"type":"reasoning","summary":[{"type":"summary_text","text":"hm"}]}"#;
const SILENT: &str = r#"{"type":"reasoning","summary":[],"encrypted_content":"x"}"#;
const CALL_A: &str = r#"{"type":"function_call","call_id":"a","name":"f","arguments":""}"#;
const CALL_B: &str = r#"{"type":"function_call","call_id":"b","name":"g","arguments":""}"#;
const OUT_A: &str = r#"{"type":"function_call_output","call_id":"a","output":"1"}"#;
const OUT_B: &str = r#"{"type":"function_call_output","call_id":"b","output":"2"}"#;

#[test]
fn a_run_counts_as_one_message() {
    let history = [
        USER, THINKS, SAYS, CALL_A, SILENT, CALL_B, OUT_B, OUT_A, THINKS, SAYS, USER,
    ];
    let placement = placed(&history).unwrap();
    let groups: Vec<_> = placement.rows.iter().map(|row| row.starts_group).collect();
    assert_eq!(
        groups,
        [
            true, true, false, false, false, false, false, false, true, false, true
        ]
    );
    let indices: Vec<_> = placement.rows.iter().map(|row| row.call_index).collect();
    assert_eq!((indices[6], indices[7]), (Some(1), Some(0)));
    assert_eq!(placement.rows[6].tool_name.as_deref(), Some("g"));
    assert!(placement.rows.iter().all(|row| row.fill.is_none()));
    assert!(placement.rows[10].starts_turn && !placement.rows[9].starts_turn);
}

#[test]
fn a_run_answers_unless_it_calls() {
    let open = |items: &[&str]| placed(items).unwrap().tail.turn_is_open();
    assert!(!open(&[USER, SAYS, SILENT]));
    assert!(!open(&[USER, SAYS, THINKS]));
    assert!(open(&[USER, THINKS]));
    assert!(open(&[USER, SILENT]));
    assert!(open(&[USER, SAYS, CALL_A]));
    assert!(open(&[USER, CALL_A, SAYS, OUT_A]));
    assert!(!open(&[USER, CALL_A, SAYS, OUT_A, SAYS]));
}

#[test]
fn outputs_answer_the_newest_run() {
    let fault = |items: &[&str]| placed(items).unwrap_err();
    assert!(matches!(
        fault(&[USER, OUT_A]),
        (1, PairingFault::NoSuchCall { .. })
    ));
    assert!(matches!(
        fault(&[CALL_A, SAYS, CALL_A]),
        (2, PairingFault::Repeated { .. })
    ));
    let interrupted = placed(&[CALL_A, CALL_B, OUT_A, SAYS]).unwrap();
    assert!(
        interrupted.rows[3]
            .fill
            .as_deref()
            .unwrap()
            .contains("\"b\"")
    );
    assert!(matches!(
        fault(&[CALL_A, CALL_B, OUT_A, SAYS, OUT_B]),
        (4, PairingFault::Interrupted { .. })
    ));
    // A later answer may use an id again.
    assert!(placed(&[CALL_A, OUT_A, CALL_A, OUT_A]).is_ok());
}

#[test]
fn the_end_is_rebuilt_from_items() {
    use crate::domain::pairing::{End, rebuild_tail};
    let histories: [&[&str]; 7] = [
        &[USER, THINKS, SAYS, CALL_A, CALL_B, OUT_B],
        &[USER, THINKS, SAYS, SILENT],
        &[USER, SILENT],
        &[USER, CALL_A, OUT_A, THINKS],
        &[USER, CALL_A, OUT_A, SAYS, CALL_B],
        &[CALL_A, OUT_A],
        &[SAYS, THINKS],
    ];
    for items in histories {
        let placement = placed(items).unwrap();
        let mut end = Vec::new();
        for row in placement.rows.iter().rev() {
            if row.message.shows_nothing() {
                continue;
            }
            end.push(End {
                seq: row.seq,
                role: row.message.role,
                call_index: row.call_index,
                calls: row.message.calls.clone(),
                is_part_of_answer: row.message.is_part_of_answer(),
                says_something: row.message.says_something,
            });
            if row.starts_group {
                break;
            }
        }
        let tail = rebuild_tail(&end);
        // An answer without calls leaves those before it where they are; they are answered or interrupted.
        assert_eq!(
            (tail.last, tail.answered),
            (placement.tail.last, placement.tail.answered)
        );
        assert_eq!(tail.run, placement.tail.run, "{items:?}");
        assert!(
            tail.open_calls().eq(placement.tail.open_calls()),
            "{items:?}"
        );
    }
}

#[test]
fn what_has_no_place_is_marked_once() {
    let ones = vec!["1"; 100_000].join(",");
    for role in ["user", "assistant"] {
        let item =
            format!(r#"{{"role":"{role}","content":[{ones},{{"type":"x"}},{{"type":"x"}},2]}}"#);
        assert_eq!(
            chat(&item),
            format!(
                r#"{{"role":"{role}","content":[{{"type":"text","text":"[part]"}},{{"type":"text","text":"[x]"}},{{"type":"text","text":"[part]"}}]}}"#
            )
        );
    }
    let output = r#"{"type":"function_call_output","call_id":"c","output":[{"type":"x"},{"type":"x"},{"type":"x","file_id":"f"},{"type":"x","file_id":"f"}]}"#;
    assert_eq!(chat(output).matches("[x]").count(), 1);
    assert_eq!(chat(output).matches("[x: f]").count(), 2);
}

#[test]
fn what_stands_beside_a_text_reads_as_items_too() {
    let texts = |body: &str| -> Vec<String> {
        let items = derive("m", body).into_iter();
        items.map(|item| item.text).collect()
    };
    for (body, expected) in [
        (
            r#"{"role":"assistant","content":null,"refusal":"no"}"#,
            r#"{"id":"msg-of-m","type":"message","status":"completed","role":"assistant","content":[{"type":"refusal","refusal":"no"}]}"#,
        ),
        (
            r#"{"role":"assistant","content":"a","refusal":null,"audio":{"id":"x","data":"AA"}}"#,
            r#"{"id":"msg-of-m","type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":"a","annotations":[]},{"type":"output_text","text":"[audio]","annotations":[]}]}"#,
        ),
        (
            r#"{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{}"}}"#,
            r#"{"id":"fc-0-of-m","type":"function_call","status":"completed","call_id":"fc-0-of-m","name":"f","arguments":"{}"}"#,
        ),
        (
            r#"{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":{"a": 1.0}}}]}"#,
            r#"{"id":"fc-0-of-m","type":"function_call","status":"completed","call_id":"c","name":"f","arguments":"{\"a\": 1.0}"}"#,
        ),
        (
            r#"{"role":"user","content":[{"type":"image_url","image_url":"u"}]}"#,
            r#"{"id":"msg-of-m","type":"message","status":"completed","role":"user","content":[{"type":"input_image","image_url":"u","detail":"auto"}]}"#,
        ),
        (
            r#"{"role":"user","content":[{"type":"file","file":{"type":"x","file_id":"f"}}]}"#,
            r#"{"id":"msg-of-m","type":"message","status":"completed","role":"user","content":[{"type":"input_file","file_id":"f"}]}"#,
        ),
    ] {
        assert_eq!(texts(body), [expected]);
    }
}

#[test]
fn ids_of_parts_are_known_by_their_form() {
    for (id, row) in [
        ("msg-of-a", Some("a")),
        ("msg-of-msg-of-a", Some("msg-of-a")),
        ("ctc-12-of-a", Some("a")),
        ("msg-of-", None),
        ("fc-of-a", None),
        ("fc-x-of-a", None),
        ("rs-1-of-a", None),
        ("msg_a", None),
    ] {
        assert_eq!(row_of(id), row, "{id}");
    }
    let item = |id: &str| read(&format!(r#"{{"role":"user","id":"{id}"}}"#)).unwrap();
    assert!(check_own_id(&item("msg_of_a")).is_ok());
    assert!(check_own_id(&item("fco-of-a")).is_err());
    let renamed_once = renamed(r#"{"id":"rs-of-a","type":"reasoning"}"#);
    assert!(renamed_once.starts_with(r#"{"id":"rs_"#), "{renamed_once}");
    assert_eq!(renamed(&renamed_once), renamed_once);
}

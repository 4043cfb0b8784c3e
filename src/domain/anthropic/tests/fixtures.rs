//! The fixtures: as histories, and as contexts after every compaction there could be.

use rstest::rstest;

use super::super::{Unmappable, render};
use super::{array, rendered, strict};
use crate::domain::context::{Opening, TailMessage, join_tail};
use crate::domain::json;
use crate::domain::message::Message;
use crate::domain::pairing::{Counters, Placed, Tail, place};

const PLAIN: &str = include_str!("../../../../tests/fixtures/01_plain_chat_12.json");
const CODING: &str = include_str!("../../../../tests/fixtures/02_coding_agent_60.json");
const SCRIPTS: &str = include_str!("../../../../tests/fixtures/03_cjk_emoji_rtl.json");
const MULTIMODAL: &str = include_str!("../../../../tests/fixtures/04_multimodal.json");
const RESEARCH: &str = include_str!("../../../../tests/fixtures/05_research_200.json");
const PATHOLOGICAL: &str = include_str!("../../../../tests/fixtures/06_pathological.json");

/// The instructions, and the other messages with their places.
fn history(sources: &[&str]) -> (Vec<String>, Vec<Placed>) {
    let messages = sources
        .iter()
        .enumerate()
        .map(|(index, text)| (format!("m{index}"), Message::read(text).unwrap()))
        .collect();
    let rows = place(Counters::default(), Tail::default(), messages)
        .unwrap()
        .rows;
    let (instructions, others): (Vec<_>, Vec<_>) = rows
        .into_iter()
        .partition(|row| row.message.role.is_instruction());
    let bodies = instructions.into_iter().map(|row| row.message.body);
    (bodies.collect(), others)
}

/// The context of a session whose summary stands for the first `cut` messages.
fn context(instructions: &[String], rows: &[Placed], cut: usize) -> String {
    let tail: Vec<_> = rows[cut..]
        .iter()
        .map(|row| TailMessage {
            body: &row.message.body,
            fill: row.fill.as_deref(),
        })
        .collect();
    let instructions = instructions.join(",");
    let opening = Opening {
        instructions: Some(&instructions),
        summary: (cut > 0).then_some("What was said."),
        tail_begins_with_assistant: tail
            .first()
            .is_some_and(|first| array(first.body)[0]["role"] == "assistant"),
        ..Opening::default()
    };
    [opening.render(), join_tail(&tail)]
        .into_iter()
        .filter(|piece| !piece.is_empty())
        .collect::<Vec<_>>()
        .join(",")
}

fn without<'a>(sources: &[&'a str], index: usize) -> Vec<&'a str> {
    [&sources[..index], &sources[index + 1..]].concat()
}

/// What of the pictures' fixture can be mapped: all but a recording and a part of a kind nobody knows.
fn mappable() -> Vec<&'static str> {
    without(&without(&json::elements(MULTIMODAL), 16), 10)
}

#[rstest]
#[case::plain(json::elements(PLAIN))]
#[case::coding(json::elements(CODING))]
#[case::scripts(json::elements(SCRIPTS))]
#[case::multimodal(mappable())]
#[case::research(json::elements(RESEARCH))]
#[case::pathological(json::elements(PATHOLOGICAL))]
fn fixtures_keep_the_rules_before_and_after_compaction(#[case] sources: Vec<&str>) {
    assert!(sources.len() > 10);
    let (instructions, rows) = history(&sources);
    for cut in 0..=rows.len() {
        if rows.get(cut).is_some_and(|row| !row.starts_group) {
            continue;
        }
        let context = context(&instructions, &rows, cut);
        let count = array(&context).as_array().unwrap().len();
        let breakpoints = [instructions.len() - 1, count / 3, count / 2, count - 1];
        let rendered = render(&context, &breakpoints).unwrap();
        let (system, messages) = (array(&rendered.system), array(&rendered.messages));
        strict::check(&system, &messages, &format!("cut {cut}"));
        assert_eq!(rendered.index.len(), count);
        assert_eq!(system[instructions.len() - 1]["type"], "text");
    }
}

#[test]
fn the_pictures_fixture_names_what_has_no_place() {
    let sources = json::elements(MULTIMODAL);
    let refused = |index: usize, what: &str| {
        Err(Unmappable {
            index,
            pointer: "/content/1".into(),
            what: what.into(),
        })
    };
    assert_eq!(
        render(&sources.join(","), &[]),
        refused(10, "a content part of type `input_audio`")
    );
    assert_eq!(
        render(&without(&sources, 10).join(","), &[]),
        refused(15, "a content part of type `x_point_cloud`")
    );
    let rendered = rendered(&mappable(), &[]);
    assert_eq!(rendered.messages.matches(r#""type":"image""#).count(), 8);
    assert_eq!(rendered.messages.matches(r#""type":"document""#).count(), 1);
}

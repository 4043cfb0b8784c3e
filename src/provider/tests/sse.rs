//! The reading of events: every way to write them, every way to cut them.

use proptest::prelude::*;
use rstest::rstest;

use crate::provider::sse::{Event, Events, TooLong};

fn read(pieces: &[&[u8]]) -> Vec<Event> {
    let mut events = Events::new(1_000_000);
    let mut all = Vec::new();
    for piece in pieces {
        all.extend(events.feed(piece).unwrap());
    }
    all.extend(events.finish());
    all
}

fn data(texts: &[&str]) -> Vec<Event> {
    texts
        .iter()
        .map(|text| Event {
            is_error: false,
            data: (*text).to_owned(),
        })
        .collect()
}

#[rstest]
#[case::plain("data: a\n\ndata: b\n\n", &["a", "b"])]
#[case::crlf("data: a\r\n\r\ndata: b\r\n\r\n", &["a", "b"])]
#[case::cr("data: a\r\rdata: b\r\r", &["a", "b"])]
#[case::mixed("data: a\r\n\ndata: b\n\r\ndata: c\r\r\n", &["a", "b", "c"])]
#[case::no_space("data:a\n\n", &["a"])]
#[case::one_space_only("data:  a \n\n", &[" a "])]
#[case::several_lines("data: a\ndata:\ndata: b\n\n", &["a\n\nb"])]
#[case::no_value("data\n\n", &[""])]
#[case::comments(": hi\n\n:\n\ndata: a\n: between\ndata: b\n\n", &["a\nb"])]
#[case::other_fields("id: 7\nretry: 5\nevent: message\nx\ndata: a\n\n", &["a"])]
#[case::mark("\u{feff}data: a\n\n", &["a"])]
#[case::mark_and_blank("\u{feff}\n\ndata: a\n\n", &["a"])]
#[case::mark_only_at_the_start("data: a\n\n\u{feff}data: b\n\n", &["a"])]
#[case::no_blank_line_at_the_end("data: a\n\ndata: b\n", &["a", "b"])]
#[case::no_line_break_at_the_end("data: a\n\ndata: b", &["a", "b"])]
#[case::nothing("", &[])]
#[case::blank("\n\r\n\r", &[])]
#[case::bare_json("data: a\n\n{\"error\":1}\n\n", &["a", "{\"error\":1}"])]
#[case::wide("data: \u{1f980} \u{e9}\u{4e2d}\n\n", &["\u{1f980} \u{e9}\u{4e2d}"])]
#[case::upper_case_is_another_field("Data: a\n\n", &[])]
fn events_in_all_their_spellings(#[case] text: &str, #[case] expected: &[&str]) {
    let bytes = text.as_bytes();
    assert_eq!(read(&[bytes]), data(expected));
    for cut in 0..=bytes.len() {
        let (one, two) = bytes.split_at(cut);
        assert_eq!(read(&[one, two]), data(expected), "cut at {cut}");
        assert_eq!(read(&[one, &[], two]), data(expected), "cut at {cut}");
    }
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(read(&single), data(expected));
}

#[test]
fn errors_have_a_type() {
    let events = read(&[
        b"event: error\ndata: a\n\ndata: b\n\nevent: error\n\nevent:error\nevent: x\ndata: c\n\n",
    ]);
    let kinds: Vec<_> = events
        .iter()
        .map(|event| (event.is_error, event.data.as_str()))
        .collect();
    assert_eq!(kinds, [(true, "a"), (false, "b"), (true, ""), (false, "c")]);
}

#[test]
fn what_is_not_utf8_is_replaced() {
    assert_eq!(read(&[b"data: a\xffb\n\n"]), data(&["a\u{fffd}b"]));
}

#[rstest]
#[case::one_line(b"data: 0123456789")]
#[case::many_lines(b"data: 0\ndata: 1\ndata: 2\ndata: 3\n")]
#[case::empty_lines(b"data\ndata\ndata\ndata\ndata\ndata\ndata\ndata\ndata\ndata\n")]
#[case::comment(b": 0123456789012")]
fn an_event_has_a_longest(#[case] bytes: &[u8]) {
    assert!(Events::new(100).feed(bytes).is_ok());
    assert_eq!(Events::new(12).feed(bytes), Err(TooLong));
    let mut events = Events::new(12);
    assert!(bytes.iter().any(|byte| events.feed(&[*byte]).is_err()));
}

#[test]
fn what_was_read_is_not_kept() {
    let mut events = Events::new(1_000);
    for _ in 0..10_000 {
        assert_eq!(events.feed(b"data: 0123456789\n\n").unwrap().len(), 1);
        assert!(events.feed(b": a comment\n\n").unwrap().is_empty());
    }
    assert!(events.held() < 1_000, "{}", events.held());
}

proptest! {
    /// Whatever comes: no panic, no more held than the limit allows, and the cuts do not matter.
    #[test]
    fn anything_can_be_read(
        bytes in proptest::collection::vec(
            prop_oneof![
                3 => Just(b'\n'), 2 => Just(b'\r'), 2 => Just(b':'), 1 => Just(b' '),
                2 => Just(b'd'), 1 => Just(b'{'), 2 => any::<u8>(),
            ],
            0..200,
        ),
        words in proptest::collection::vec(0..4_usize, 0..40),
        cuts in proptest::collection::vec(0..400_usize, 0..12),
    ) {
        let mut all = bytes;
        for word in words {
            all.extend_from_slice([&b"data:"[..], b"event: error\n", b"\n\n", "\u{feff}".as_bytes()][word]);
        }
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(all.len())).collect();
        cuts.extend([0, all.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &all[pair[0]..pair[1]]).collect();
        prop_assert_eq!(read(&[&all]), read(&pieces));

        let mut events = Events::new(16);
        for piece in pieces {
            if events.feed(piece).is_err() {
                break;
            }
            prop_assert!(events.held() <= 64, "{}", events.held());
        }
    }
}

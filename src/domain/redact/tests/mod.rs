//! Examples and laws of redaction. Every secret here is invented, and put together from pieces so
//! that no scanner takes it for a real one.

mod caught;
mod kept;
mod laws;

/// A body of letters and digits as keys have, of a length.
fn body(length: usize) -> String {
    "Inv3nted0nlyForTh1sTestAndN0thingE1se"
        .chars()
        .cycle()
        .take(length)
        .collect()
}

/// Lines of base64 as key blocks have.
fn block(lines: usize, end: &str) -> String {
    let line: String = "N0tAK3y/JustS0me+Letters"
        .chars()
        .cycle()
        .take(64)
        .collect();
    vec![line; lines].join(end)
}

/// Between the marks of a private key.
fn marks(label: &str) -> (String, String) {
    let dashes = "-".repeat(5);
    (
        format!("{dashes}BEGIN {label}{dashes}"),
        format!("{dashes}END {label}{dashes}"),
    )
}

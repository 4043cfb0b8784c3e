//! The items of a summary: their sections, what makes one worth its room, and reading them back from an older summary.
//!
//! The written form is the only state of a chain of compactions, so everything an item needs later (its section, how
//! many statements it stands for) can be read from its line. Older items are weighed by the same rules as new ones;
//! age does not enter.

use super::cues::{self, Cues};
use super::text;
use super::tokens::{self, Kind, Token};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Section {
    Requests,
    Decisions,
    Facts,
    Files,
    Commands,
    Open,
    State,
}

impl Section {
    pub(super) const ALL: [Self; 7] = [
        Self::Requests,
        Self::Decisions,
        Self::Facts,
        Self::Files,
        Self::Commands,
        Self::Open,
        Self::State,
    ];

    pub(super) fn heading(self) -> &'static str {
        match self {
            Self::Requests => "## Task and requests",
            Self::Decisions => "## Decisions and constraints",
            Self::Facts => "## Facts and findings",
            Self::Files => "## Files",
            Self::Commands => "## Commands and errors",
            Self::Open => "## Open points and promises",
            Self::State => "## State",
        }
    }

    /// The section a foreign heading speaks of, if it is one we have.
    fn of_foreign(heading: &str) -> Option<Self> {
        let low = heading.to_lowercase();
        let names: [(Self, &[&str]); 6] = [
            (
                Self::Open,
                &[
                    "open",
                    "pending",
                    "todo",
                    "to do",
                    "promise",
                    "question",
                    "unresolved",
                ],
            ),
            (
                Self::Decisions,
                &[
                    "decision",
                    "constraint",
                    "rule",
                    "requirement",
                    "preference",
                ],
            ),
            (
                Self::Requests,
                &["task", "request", "goal", "objective", "intent"],
            ),
            (
                Self::Facts,
                &[
                    "fact",
                    "finding",
                    "number",
                    "conclusion",
                    "context",
                    "people",
                ],
            ),
            (Self::Commands, &["command", "error", "problem"]),
            (Self::Files, &["file"]),
        ];
        names
            .iter()
            .find(|(_, words)| words.iter().any(|word| low.contains(word)))
            .map(|(section, _)| *section)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Previous,
    User,
    Assistant,
}

#[derive(Debug, Clone)]
pub(super) struct Item {
    pub section: Section,
    /// One clean line.
    pub text: String,
    pub origin: Origin,
    pub cues: Cues,
    /// What it is worth; see [`weigh`].
    pub score: i32,
    /// Rises from the oldest to the newest.
    pub order: usize,
    /// The user turn it was said in; older items have none.
    pub turn: Option<usize>,
    /// How many statements of the same shape it stands for, itself included.
    pub similar: u32,
    /// Three tokens in a row, hashed with digits masked.
    pub grams: Vec<u64>,
}

/// What must at least be seen in an assistant's sentence for it to be kept.
pub(super) const ASSISTANT_FLOOR: i32 = 22;

impl Item {
    /// Reads a sentence (or a few that belong together) said by `origin`. `hint` is the section it is known to be of.
    pub(super) fn read(line: &str, origin: Origin, hint: Option<Section>) -> Self {
        let (similar, body) = if origin == Origin::Previous {
            split_similar(line)
        } else {
            (1, unsplit(line))
        };
        let low = body.to_ascii_lowercase();
        let mut item = Self::of_tokens(body, &tokens::scan(body, &low), origin, hint);
        item.similar = similar;
        item
    }

    /// The same from the tokens of `body`.
    pub(super) fn of_tokens(
        body: &str,
        scanned: &[Token<'_>],
        origin: Origin,
        hint: Option<Section>,
    ) -> Self {
        let mut cues = cues::read(body, scanned);
        if origin == Origin::Assistant && cues.has(Cues::REQUEST) {
            cues.add(Cues::HEDGE);
        }
        let mut section = hint.unwrap_or_else(|| section_of(origin, cues));
        if hint.is_none()
            && origin == Origin::User
            && section == Section::Facts
            && cues.is_plain()
            && content_points(body, scanned) < 8
        {
            // A statement without a single hard fact is taken as part of what the user wants.
            section = Section::Requests;
        }
        let mut score = weigh(body, scanned, cues, origin, section);
        if origin == Origin::Assistant
            && section == Section::Open
            && content_points(body, scanned) < 8
        {
            // "I don't know yet" is open, but it is about nothing.
            score -= 40;
        }
        Self {
            section,
            text: body.to_owned(),
            origin,
            cues,
            score,
            order: 0,
            turn: None,
            similar: 1,
            grams: tokens::trigrams(scanned),
        }
    }

    /// The line as the summary shows it, without the leading mark.
    pub(super) fn line(&self) -> String {
        if self.similar > 1 {
            format!("({} similar) {}", self.similar, self.text)
        } else {
            self.text.clone()
        }
    }
}

fn split_similar(line: &str) -> (u32, &str) {
    line.strip_prefix('(')
        .and_then(|rest| rest.split_once(" similar) "))
        .and_then(|(count, body)| {
            count
                .parse()
                .ok()
                .map(|count: u32| (count.clamp(1, 1_000_000), body))
        })
        .unwrap_or((1, line))
}

/// Takes a count that somebody typed off the front: only this module writes counts.
pub(super) fn unsplit(mut line: &str) -> &str {
    loop {
        let (_, body) = split_similar(line);
        if body.len() == line.len() {
            return line;
        }
        line = body;
    }
}

fn section_of(origin: Origin, cues: Cues) -> Section {
    let asks = cues.has(Cues::QUESTION);
    if cues.has(Cues::OPEN.with(Cues::PROMISE)) {
        return Section::Open;
    }
    match origin {
        Origin::Assistant if asks => Section::Open,
        Origin::Assistant
            if cues.has(Cues::DECISION)
                || (cues.has(Cues::RULE) && !cues.has(Cues::HEDGE.with(Cues::REQUEST))) =>
        {
            Section::Decisions
        }
        Origin::Assistant => Section::Facts,
        _ if asks => Section::Requests,
        _ if cues.has(Cues::DECISION.with(Cues::RULE)) => Section::Decisions,
        _ if cues.has(Cues::REQUEST) && cues.has(Cues::NEGATION) => Section::Decisions,
        _ if cues.has(Cues::REQUEST) => Section::Requests,
        _ => Section::Facts,
    }
}

/// Tenths of a point: what a sentence holds that could not be guessed, and what it settles.
fn weigh(body: &str, scanned: &[Token<'_>], cues: Cues, origin: Origin, section: Section) -> i32 {
    let mut score = content_points(body, scanned);
    for (cue, points) in [
        (Cues::DECISION, 25),
        (Cues::RULE, 25),
        (Cues::CORRECTION, 22),
        (Cues::PROMISE, 30),
        (Cues::OPEN, 25),
        (Cues::NEGATION, 8),
        (Cues::ERROR, 10),
        (Cues::RESULT, 8),
        (Cues::ROLE, 8),
        (Cues::HEDGE, -14),
        (Cues::THANKS, -6),
    ] {
        if cues.has(cue) {
            score += points;
        }
    }
    score += match (origin, section) {
        (Origin::User, _) | (Origin::Previous, Section::Decisions | Section::Open) => 22,
        (Origin::Previous, _) => 12,
        (Origin::Assistant, _) => 0,
    };
    if origin == Origin::Assistant && section == Section::Open {
        score -= 12;
    }
    if scanned.len() < 3 && scanned.iter().all(|t| t.kind == Kind::Word) {
        score -= 15;
    }
    score
}

fn content_points(body: &str, scanned: &[Token<'_>]) -> i32 {
    let (mut ids, mut dates, mut amounts, mut bare, mut names, mut glyphs) = (0, 0, 0, 0, 0, 0);
    let mut before: Option<&Token<'_>> = None;
    let mut in_name = false;
    for (at, token) in scanned.iter().enumerate() {
        let mut capital = false;
        match token.kind {
            Kind::Ident | Kind::Path => ids += 1,
            Kind::Date | Kind::Time => dates += 1,
            Kind::Number => {
                let next = scanned.get(at + 1);
                let labelled = before
                    .is_some_and(|b| b.kind == Kind::Word && cues::is_label(b.low))
                    && matches!(token.gap, " " | " #");
                let month = |t: Option<&Token<'_>>| {
                    t.is_some_and(|t| t.kind == Kind::Word && cues::is_month(t.low))
                };
                if month(next) || month(before) {
                    dates += 1;
                } else if labelled && token.low.len() < 5 {
                    bare += 1;
                } else if token.low.contains(['.', ','])
                    || next.is_some_and(|n| {
                        matches!(n.kind, Kind::Word | Kind::Ident) && !cues::is_stop(n.low)
                    })
                    || token.low.ends_with(char::is_alphabetic)
                {
                    amounts += 1;
                } else {
                    bare += 2;
                }
            }
            Kind::Word => {
                capital = at > 0
                    && token.is_capital()
                    && !token.after_break()
                    && token.low != "i"
                    && !token.low.starts_with("i'");
                names += i32::from(capital && !in_name);
                // Scripts beyond Latin, whose words the lists mostly do not know.
                glyphs += if token.low.starts_with(|c| c > '\u{24F}') {
                    2
                } else {
                    0
                };
            }
            Kind::Glyph => {
                glyphs += 1;
                let ends = before.is_some_and(|b| is_cjk_figure(b.low)) && is_counter(token.low);
                amounts += i32::from(ends);
            }
        }
        in_name = capital;
        before = Some(token);
    }
    let quoted = i32::from(body.contains(['`', '"', '“', '「', '‘', '『']));
    // Scripts the word lists do not know: their length speaks for them, up to a point.
    ids.min(3) * 22
        + dates.min(3) * 20
        + amounts.min(4) * 15
        + bare.min(4) * 3
        + names.min(3) * 11
        + quoted * 6
        + glyphs.min(20)
}

pub(super) fn is_cjk_figure(glyph: &str) -> bool {
    glyph.starts_with([
        '一', '二', '三', '四', '五', '六', '七', '八', '九', '十', '百', '千', '万', '两', '兩',
        '半',
    ])
}

/// What is counted after a figure: money, people, nights, times.
pub(super) fn is_counter(glyph: &str) -> bool {
    glyph.starts_with([
        '元', '円', '人', '名', '晚', '泊', '年', '月', '日', '点', '點', '時', '时', '分', '周',
        '週', '天', '个', '個', '岁', '歳', '度', '米',
    ])
}

/// Items and what the rest of an older summary says, in its order.
pub(super) enum Older {
    Item(Item),
    /// A line of a section that is kept as a ledger.
    Ledger(Section, String),
    LastRequest(String),
    LastAnswer(String),
}

pub(super) const LAST_REQUEST: &str = "Last request: ";
pub(super) const LAST_ANSWER: &str = "Last answer: ";
pub(super) const LAST_ACTION: &str = "Last action: ";

/// At most this many bytes of a foreign summary are looked at, from its two ends.
const FOREIGN_FRONT: usize = 96 * 1024;
const FOREIGN_BACK: usize = 32 * 1024;

/// Takes an older summary apart, by whomever it was written.
pub(super) fn parse(previous: &str) -> Vec<Older> {
    let (front, back) = text::window(previous, FOREIGN_FRONT, FOREIGN_BACK);
    let mut out = Vec::new();
    let mut section: Option<Section> = None;
    let mut ours = false;
    let mut prose = String::new();
    for line in front.lines().chain(back.lines()) {
        let line = line.trim();
        if let Some(found) = Section::ALL.into_iter().find(|s| s.heading() == line) {
            prose_items(&mut prose, section, &mut out);
            (section, ours) = (Some(found), true);
        } else if is_heading(line) {
            prose_items(&mut prose, section, &mut out);
            (section, ours) = (Section::of_foreign(line), false);
        } else if let Some(item) = line.strip_prefix("- ") {
            prose_items(&mut prose, section, &mut out);
            own_item(item, section, ours, &mut out);
        } else {
            prose.push_str(line);
            prose.push('\n');
        }
    }
    prose_items(&mut prose, section, &mut out);
    out
}

fn is_heading(line: &str) -> bool {
    let bare = line.trim_matches('*');
    line.starts_with('#')
        || (line.starts_with("**") && bare.len() + 4 >= line.len() && bare.len() < 60)
        || (line.ends_with(':') && line.len() < 40 && !line.starts_with('-'))
}

fn own_item(raw: &str, section: Option<Section>, ours: bool, out: &mut Vec<Older>) {
    let line = text::one_line(text::strip_marks(raw));
    if line.is_empty() {
        return;
    }
    if let Some(request) = line.strip_prefix(LAST_REQUEST) {
        out.push(Older::LastRequest(request.to_owned()));
    } else if let Some(answer) = line.strip_prefix(LAST_ANSWER) {
        out.push(Older::LastAnswer(answer.to_owned()));
    } else if line.starts_with(LAST_ACTION) {
        // The ledger has it already.
    } else if let Some(ledger @ (Section::Files | Section::Commands)) = section {
        out.push(Older::Ledger(ledger, line));
    } else if text::units(&line) > text::MAX_SENTENCE * 2 || !ours {
        let mut prose = line;
        prose_items(&mut prose, section, out);
    } else {
        out.push(Older::Item(Item::read(
            &line,
            Origin::Previous,
            section.filter(|s| *s != Section::State),
        )));
    }
}

fn prose_items(prose: &mut String, section: Option<Section>, out: &mut Vec<Older>) {
    let hint = section.filter(|s| {
        matches!(
            s,
            Section::Requests | Section::Decisions | Section::Facts | Section::Open
        )
    });
    for sentence in text::sentences(prose, 400) {
        out.push(Older::Item(Item::read(&sentence, Origin::Previous, hint)));
    }
    prose.clear();
}

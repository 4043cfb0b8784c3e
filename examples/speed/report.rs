//! What was measured, as a table for people or as one JSON document.

use serde::Serialize;

use crate::load::{Rounds, median};
use crate::machine::Machine;

/// What a row should reach.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Goal {
    /// This, or more.
    AtLeast(f64),
    /// This, or less.
    AtMost(f64),
    /// More than this.
    MoreThan(f64),
    /// It is shown, not judged.
    None,
}

impl Goal {
    fn is_reached(self, value: f64) -> Option<bool> {
        match self {
            Self::AtLeast(goal) => Some(value >= goal),
            Self::AtMost(goal) => Some(value <= goal),
            Self::MoreThan(goal) => Some(value > goal),
            Self::None => None,
        }
    }
}

impl std::fmt::Display for Goal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtLeast(goal) => write!(f, ">= {goal}"),
            Self::AtMost(goal) => write!(f, "<= {goal}"),
            Self::MoreThan(goal) => write!(f, "> {goal}"),
            Self::None => write!(f, "-"),
        }
    }
}

/// What is the same in all rows of one measurement.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Heading {
    /// The name by which it is chosen.
    pub name: &'static str,
    /// What is compared with what.
    pub what: String,
    /// `sqlite` or `postgresql`.
    pub database: &'static str,
    /// How many ask at once.
    pub connections: usize,
    /// What a commit waits for, on both sides.
    pub durability: String,
}

/// One line of the table.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    #[serde(flatten)]
    heading: Heading,
    /// Of both values.
    unit: &'static str,
    /// The middle value of all rounds.
    subject: f64,
    /// The same of what it is measured against.
    floor: Option<f64>,
    /// The middle one of the rounds' ratios; `None` where a value is judged by itself.
    ratio: Option<f64>,
    /// Smallest and largest of what is judged.
    spread: (f64, f64),
    goal: Goal,
    reached: Option<bool>,
}

fn ends(values: &[f64]) -> (f64, f64) {
    let smallest = values.iter().copied().fold(f64::INFINITY, f64::min);
    let largest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (smallest, largest)
}

impl Row {
    /// A ratio, judged by the middle round.
    pub fn ratio(heading: Heading, unit: &'static str, rounds: &Rounds, goal: Goal) -> Self {
        let ratios: Vec<f64> = rounds
            .iter()
            .map(|(subject, floor)| subject / floor)
            .collect();
        let ratio = median(ratios.iter().copied());
        Self {
            heading,
            unit,
            subject: median(rounds.iter().map(|round| round.0)),
            floor: Some(median(rounds.iter().map(|round| round.1))),
            ratio: Some(ratio),
            spread: ends(&ratios),
            goal,
            reached: goal.is_reached(ratio),
        }
    }

    /// A value that is judged by itself.
    pub fn value(heading: Heading, unit: &'static str, values: &[f64], goal: Goal) -> Self {
        let subject = median(values.iter().copied());
        Self {
            heading,
            unit,
            subject,
            floor: None,
            ratio: None,
            spread: ends(values),
            goal,
            reached: goal.is_reached(subject),
        }
    }

    fn cells(&self) -> [String; 9] {
        let verdict = match self.reached {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "-",
        };
        let heading = &self.heading;
        [
            heading.name.to_owned(),
            heading.connections.to_string(),
            heading.durability.clone(),
            format!("{} {}", short(self.subject), self.unit),
            self.floor.map_or_else(|| "-".to_owned(), short),
            self.ratio.map_or_else(|| "-".to_owned(), short),
            format!("{} to {}", short(self.spread.0), short(self.spread.1)),
            format!("{} {verdict}", self.goal),
            heading.what.clone(),
        ]
    }
}

/// Three digits, or all of those before the point.
fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// All of it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Where it was measured.
    pub machine: Machine,
    /// Rounds that count, of each row.
    pub rounds: usize,
    /// How long each side is asked in a round, in milliseconds.
    pub slice_ms: u128,
    /// In the order in which they were measured.
    pub rows: Vec<Row>,
    /// What was not measured, and why.
    pub notes: Vec<String>,
}

impl Report {
    /// The aligned table.
    pub fn print(&self) {
        println!("{}", self.machine);
        println!(
            "{} rounds in turns, {} ms each; the ratio is that of the middle round\n",
            self.rounds, self.slice_ms
        );
        let titles = [
            "row",
            "conn",
            "durability",
            "measured",
            "against",
            "ratio",
            "spread",
            "goal",
            "what",
        ];
        let mut lines = vec![titles.map(str::to_owned)];
        lines.extend(self.rows.iter().map(Row::cells));
        let mut widths = [0; 9];
        for line in &lines {
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = cell.chars().count().max(*width);
            }
        }
        for line in &lines {
            let cells: Vec<String> = line
                .iter()
                .zip(widths)
                .map(|(cell, width)| format!("{cell:width$}"))
                .collect();
            println!("{}", cells.join("  ").trim_end());
        }
        for note in &self.notes {
            println!("\n{note}");
        }
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [
            name,
            connections,
            durability,
            measured,
            floor,
            ratio,
            spread,
            goal,
            what,
        ] = self.cells();
        write!(
            f,
            "{name} at {connections} ({durability}): {measured} against {floor}, ratio {ratio} ({spread}), goal {goal}: {what}"
        )
    }
}

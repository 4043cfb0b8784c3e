//! A strict reading of the text format of `OpenMetrics`: what is not as the format says fails the test.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::Http;

/// One scrape.
#[derive(Debug, Default)]
pub struct Scrape {
    /// Families by name, each with its type.
    pub families: BTreeMap<String, String>,
    /// Samples by name and labels, the labels in the order of their names: `name{a="x",b="y"}`.
    pub samples: BTreeMap<String, f64>,
}

impl Scrape {
    pub async fn of(http: &Http) -> Self {
        let reply = http.get("/metrics").await.expect(200);
        let kind = reply.header("content-type").unwrap_or_default();
        assert!(
            kind.starts_with("application/openmetrics-text; version=1.0.0"),
            "the type of the metrics: {kind}"
        );
        let text = std::str::from_utf8(&reply.body).expect("the metrics are UTF-8");
        Self::parse(text)
    }

    pub fn parse(text: &str) -> Self {
        let body = text.strip_suffix("# EOF\n");
        let body = body.expect("the metrics end with `# EOF` and a line break");
        let mut scrape = Self::default();
        let mut helped = BTreeSet::new();
        let mut current: Option<String> = None;
        for line in body.lines() {
            assert!(!line.trim().is_empty(), "there are no blank lines");
            if let Some(rest) = line.strip_prefix("# ") {
                let mut words = rest.splitn(3, ' ');
                let mut word = || words.next().expect("a keyword and a name");
                let (keyword, name) = (word(), word());
                let text = words.next().unwrap_or_default();
                match keyword {
                    "HELP" => {
                        assert!(text.len() > 3, "{name} has a help text");
                        assert!(helped.insert(name.to_owned()), "{name} comes once");
                    }
                    "TYPE" => {
                        scrape.families.insert(name.to_owned(), text.to_owned());
                        current = Some(name.to_owned());
                    }
                    "UNIT" => assert!(name.ends_with(&format!("_{text}")), "{name} in {text}"),
                    _ => panic!("an unknown line: {line}"),
                }
                continue;
            }
            let family = current.as_deref().expect("a sample has a family");
            scrape.take_sample(family, line);
        }
        for family in scrape.families.keys() {
            assert!(helped.contains(family), "{family} has a help text");
        }
        scrape.check_histograms();
        scrape
    }

    fn take_sample(&mut self, family: &str, line: &str) {
        let (series, value) = line.rsplit_once(' ').expect("a sample has a value");
        let value: f64 = value.parse().expect("a value is a number");
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}').expect("labels are closed")),
            None => (series, ""),
        };
        let suffixes: &[&str] = match self.families[family].as_str() {
            "counter" => &["_total"],
            "gauge" => &[""],
            "histogram" => &["_bucket", "_sum", "_count"],
            "info" => &["_info"],
            kind => panic!("{family} is of the type {kind}"),
        };
        let suffix = name.strip_prefix(family).expect("a sample of its family");
        assert!(suffixes.contains(&suffix), "{name} is a sample of {family}");
        let mut labels: Vec<_> = split_labels(labels);
        labels.sort();
        let series = if labels.is_empty() {
            name.to_owned()
        } else {
            format!("{name}{{{}}}", labels.join(","))
        };
        let before = self.samples.insert(series.clone(), value);
        assert!(before.is_none(), "{series} comes once");
    }

    /// Buckets rise, and the last one holds all.
    fn check_histograms(&self) {
        let histograms = self
            .families
            .iter()
            .filter(|(_, kind)| *kind == "histogram");
        for (family, _) in histograms {
            let counter = format!("{family}_count");
            for (series, count) in self.matching(&counter) {
                let labels = series.strip_prefix(counter.as_str());
                let labels = labels.expect("a series of this name");
                let labels = labels.trim_matches(['{', '}']);
                let mut buckets: Vec<(f64, f64)> = self
                    .matching(&format!("{family}_bucket"))
                    .filter_map(|(bucket, value)| {
                        let (_, all) = bucket.split_once('{').expect("a bucket has a bound");
                        let all = all.trim_end_matches('}');
                        let parts = split_labels(all);
                        let (bounds, own): (Vec<_>, Vec<_>) = parts
                            .into_iter()
                            .partition(|label| label.starts_with("le="));
                        let bound = bounds[0].trim_start_matches("le=").trim_matches('"');
                        let bound = bound.replace("+Inf", "inf").parse();
                        let bound = bound.expect("a bound is a number");
                        (own.join(",") == labels).then_some((bound, value))
                    })
                    .collect();
                buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
                assert!(buckets.len() > 2, "{series} has buckets");
                assert!(buckets.is_sorted_by(|a, b| a.1 <= b.1), "{series} rises");
                let (bound, all) = buckets[buckets.len() - 1];
                assert!(bound.is_infinite(), "{series} has a bucket for all");
                assert!((all - count).abs() < 0.5, "{series} counts all");
            }
        }
    }

    fn matching<'s>(&'s self, name: &'s str) -> impl Iterator<Item = (&'s str, f64)> {
        let samples = self.samples.iter();
        samples
            .filter(move |(series, _)| series.split('{').next() == Some(name))
            .map(|(series, value)| (series.as_str(), *value))
    }

    /// The value of a series; 0 if there is none.
    pub fn value(&self, series: &str) -> f64 {
        self.samples.get(series).copied().unwrap_or(0.0)
    }

    /// All series of a name together.
    pub fn sum(&self, name: &str) -> f64 {
        self.matching(name).map(|(_, value)| value).sum()
    }

    #[track_caller]
    pub fn expect(&self, series: &str, value: f64) {
        let name = series.split('{').next().unwrap_or_default();
        let found: Vec<_> = self.matching(name).collect();
        let is = self.value(series);
        assert!(
            (is - value).abs() < 1e-9,
            "expected {series} {value}, got {is} among {found:#?}"
        );
    }
}

/// `a="x",b="y"` as its parts; a value may hold commas.
fn split_labels(labels: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for piece in labels.split_inclusive("\",") {
        let piece = piece.strip_suffix(',').unwrap_or(piece);
        if !piece.is_empty() {
            let (name, value) = piece.split_once('=').expect("a label has a value");
            let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(name.chars().all(is_name), "the name of a label: {name}");
            assert!(
                value.starts_with('"') && value.ends_with('"'),
                "{value} is quoted"
            );
            parts.push(piece.to_owned());
        }
    }
    parts
}

//! The result of `bench scale`.

use serde::Serialize;

use crate::statistics::Spread;
use crate::terminal::report_progress;

/// One way in one round.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Round {
    pub(super) per_second: f64,
    /// CPU seconds for a million, of each kind of process.
    pub(super) cpu: Vec<(&'static str, f64)>,
}

impl Round {
    fn cpu_of_all(&self) -> f64 {
        self.cpu.iter().map(|(_, seconds)| seconds).sum()
    }
}

/// The ways of doing one thing, and their rounds.
pub(super) struct Part {
    what: &'static str,
    ways: Vec<(String, Vec<Round>)>,
}

impl Part {
    pub(super) fn new(what: &'static str) -> Self {
        Self { what, ways: Vec::new() }
    }

    pub(super) fn add(&mut self, way: &str, round: Round) {
        report_progress(&format!(
            "  {way}: {:.0} {} a second, {:.2} CPU s per million",
            round.per_second,
            self.what,
            round.cpu_of_all()
        ));
        match self.ways.iter_mut().find(|(name, _)| name == way) {
            Some((_, rounds)) => rounds.push(round),
            None => self.ways.push((way.to_owned(), vec![round])),
        }
    }
}

/// A way over all rounds.
#[derive(Debug, Serialize)]
struct Way {
    what: &'static str,
    name: String,
    per_second: Spread,
    /// CPU seconds for a million of all processes, against the first way of the same round.
    cpu_ratio: Spread,
    /// CPU seconds for a million, of each kind of process.
    cpu: Vec<(&'static str, Spread)>,
}

/// Everything that a run measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    ways: Vec<Way>,
}

impl Report {
    pub(super) fn new(parts: impl IntoIterator<Item = Part>) -> anyhow::Result<Self> {
        let mut ways = Vec::new();
        for Part { what, ways: of_part } in parts {
            for (name, rounds) in &of_part {
                let kinds = rounds[0].cpu.iter().enumerate();
                let of_kind = |place: usize| Spread::of(rounds.iter().map(|round| round.cpu[place].1));
                ways.push(Way {
                    what,
                    name: name.clone(),
                    per_second: Spread::of(rounds.iter().map(|round| round.per_second))?,
                    cpu_ratio: Spread::of_ratios(rounds, &of_part[0].1, Round::cpu_of_all)?,
                    cpu: kinds
                        .map(|(place, (kind, _))| Ok((*kind, of_kind(place)?)))
                        .collect::<anyhow::Result<_>>()?,
                });
            }
        }
        Ok(Self { ways })
    }

    /// Returns the result for people.
    pub(crate) fn text(&self) -> String {
        let mut lines = vec![format!(
            "{:<40} {:>12} {:>22}   CPU s per million",
            "medians", "a second", "CPU / the first's"
        )];
        for Way { what, name, per_second, cpu_ratio, cpu } in &self.ways {
            let kinds: Vec<String> =
                cpu.iter().map(|(kind, seconds)| format!("{kind} {:.2}", seconds.median)).collect();
            let Spread { min, median, max } = cpu_ratio;
            lines.push(format!(
                "{:<40} {:>12.0} {:>22}   {}",
                format!("{what}: {name}"),
                per_second.median,
                format!("{median:.3} ({min:.3} to {max:.3})"),
                kinds.join(", ")
            ));
        }
        lines.join("\n")
    }
}

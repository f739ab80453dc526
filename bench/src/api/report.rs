//! The result of `bench api`.

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::bar::Bar;
use crate::statistics::Spread;

/// One side of a comparison for a while: latencies of one request after the other.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Round {
    requests: u64,
    pub(super) p50_us: u64,
    pub(super) p99_us: u64,
}

impl Round {
    /// Summarizes latencies in microseconds.
    pub(super) fn new(latencies: &Histogram<u64>) -> Self {
        let [p50_us, p99_us] = [0.5, 0.99].map(|quantile| latencies.value_at_quantile(quantile).max(1));
        Self { requests: latencies.len(), p50_us, p99_us }
    }
}

/// An operation of the API and its bare statements, with the ratios of their latencies pair by pair.
#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    pub(super) name: &'static str,
    pub(super) p50: Spread,
    pub(super) p99: Spread,
    ours: Vec<Round>,
    bare: Vec<Round>,
}

impl Comparison {
    /// Computes the ratios.
    ///
    /// # Errors
    /// When there are no rounds.
    pub(super) fn new(name: &'static str, ours: Vec<Round>, bare: Vec<Round>) -> anyhow::Result<Self> {
        let p50 = Spread::of_ratios(&ours, &bare, |round| round.p50_us as f64)?;
        let p99 = Spread::of_ratios(&ours, &bare, |round| round.p99_us as f64)?;
        Ok(Self { name, p50, p99, ours, bare })
    }
}

/// Everything that a run measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    comparisons: [Comparison; 2],
    list_per_second: Spread,
    constant_per_second: Spread,
    bars: [Bar; 2],
}

impl Report {
    /// Compares the ratios with their targets; `list` and `constant` are rates, pair by pair.
    ///
    /// # Errors
    /// When there are no rates.
    pub(super) fn new(
        comparisons: [Comparison; 2],
        list: Vec<f64>,
        constant: Vec<f64>,
    ) -> anyhow::Result<Self> {
        let [page, create] = &comparisons;
        let bars = [
            Bar::at_most(format!("{}, ratio of p99", page.name), page.p99.median, 1.5),
            Bar::at_most(format!("{}, ratio of p50", create.name), create.p50.median, 2.0),
        ];
        let (list_per_second, constant_per_second) = (Spread::of(list)?, Spread::of(constant)?);
        Ok(Self { comparisons, list_per_second, constant_per_second, bars })
    }

    /// Returns the result for people.
    pub(crate) fn text(&self) -> String {
        let mut lines = Vec::new();
        for Comparison { name, p50, p99, ours, bare } in &self.comparisons {
            lines.push(format!("{name}\n  ratio p50    {}\n  ratio p99    {}", p50.text(2), p99.text(2)));
            for (side, rounds) in [("api", ours), ("bare", bare)] {
                for Round { requests, p50_us, p99_us } in rounds {
                    lines.push(format!("  {side:<4} {requests} requests, p50 {p50_us} us, p99 {p99_us} us"));
                }
            }
        }
        lines.push(format!("list/s           {}", self.list_per_second.text(0)));
        lines.push(format!("constant JSON/s  {}", self.constant_per_second.text(0)));
        lines.extend(self.bars.iter().map(Bar::text));
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison() -> Comparison {
        let round = |p50_us, p99_us| Round { requests: 1, p50_us, p99_us };
        let (ours, bare) = (vec![round(150, 600), round(450, 800)], vec![round(100, 200), round(300, 200)]);
        Comparison::new("list", ours, bare).unwrap()
    }

    #[test]
    fn each_target_checks_its_percentile() {
        assert_eq!(comparison().p50, Spread { min: 1.5, median: 1.5, max: 1.5 });
        assert_eq!(comparison().p99, Spread { min: 3.0, median: 3.5, max: 4.0 });
        let report = Report::new([comparison(), comparison()], vec![1.0], vec![2.0]).unwrap();
        assert!(report.bars[0].text().starts_with("MISSED"));
        assert!(report.bars[1].text().starts_with("met"));
    }

    #[test]
    fn a_comparison_without_rounds_is_an_error() {
        assert!(Comparison::new("list", Vec::new(), Vec::new()).is_err());
        assert!(Report::new([comparison(), comparison()], Vec::new(), Vec::new()).is_err());
    }
}

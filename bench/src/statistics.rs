//! Summaries of measured values.

use std::time::Duration;

use anyhow::Context as _;
use hdrhistogram::Histogram;
use serde::Serialize;

/// The smallest, the middle and the largest of several values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) median: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Summarizes values.
    ///
    /// # Errors
    /// When there are none.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> anyhow::Result<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = values.first().zip(values.last()).context("no values to summarize")?;
        let half = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[half] } else { f64::midpoint(values[half - 1], values[half]) };
        Ok(Self { min: *min, median, max: *max })
    }

    /// Summarizes the ratios of two sides, round by round.
    ///
    /// # Errors
    /// When there are no rounds.
    pub(crate) fn of_ratios<T>(of: &[T], to: &[T], value: impl Fn(&T) -> f64) -> anyhow::Result<Self> {
        Self::of(std::iter::zip(of, to).map(|(of, to)| value(of) / value(to)))
    }

    /// Returns the median, then the ends in parentheses.
    pub(crate) fn text(self, decimals: usize) -> String {
        let Self { min, median, max } = self;
        format!("{median:>9.decimals$}   ({min:.decimals$} to {max:.decimals$})")
    }
}

/// Creates an empty histogram of three significant digits.
pub(crate) fn histogram() -> anyhow::Result<Histogram<u64>> {
    Ok(Histogram::new(3)?)
}

/// Returns a time in whole microseconds.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_does_not_depend_on_the_order() {
        let spread = |values: &[f64]| Spread::of(values.iter().copied()).ok();
        assert_eq!(spread(&[0.9, 0.5, 0.7]), Some(Spread { min: 0.5, median: 0.7, max: 0.9 }));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]), Some(Spread { min: 1.0, median: 2.5, max: 4.0 }));
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn a_ratio_compares_neighbours_in_time() {
        let ratio = Spread::of_ratios(&[800.0, 1000.0], &[1000.0, 2000.0], |value| *value).unwrap();
        assert_eq!(ratio, Spread { min: 0.5, median: 0.65, max: 0.8 });
    }
}

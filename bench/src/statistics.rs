//! Numbers that stand for many numbers.

use serde::Serialize;

/// The smallest, the middle and the largest of several values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) median: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Sums up values; `None` when there are none.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let half = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[half] } else { f64::midpoint(values[half - 1], values[half]) };
        Some(Self { min, median, max })
    }
}

/// Returns the value that `percent` per cent of the sorted values do not exceed (nearest rank); 0 of none.
pub(crate) fn percentile(sorted: &[u32], percent: usize) -> u32 {
    permille(sorted, percent * 10)
}

/// Returns the value that so many in a thousand of the sorted values do not exceed (nearest rank); 0 of none.
pub(crate) fn permille(sorted: &[u32], permille: usize) -> u32 {
    let rank = (sorted.len() * permille).div_ceil(1000).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_does_not_depend_on_the_order() {
        let odd = Spread::of([0.9, 0.5, 0.7]);
        assert_eq!(odd, Some(Spread { min: 0.5, median: 0.7, max: 0.9 }));
        let even = Spread::of([4.0, 1.0, 2.0, 3.0]);
        assert_eq!(even, Some(Spread { min: 1.0, median: 2.5, max: 4.0 }));
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values: Vec<u32> = (1..=200).collect();
        assert_eq!(percentile(&values, 50), 100);
        assert_eq!(percentile(&values, 99), 198);
        assert_eq!(percentile(&values, 100), 200);
        assert_eq!(permille(&values, 995), 199);
        assert_eq!(percentile(&[7], 1), 7);
        assert_eq!(percentile(&[], 99), 0);
    }
}

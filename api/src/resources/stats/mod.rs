//! Counts over a window: totals, uniques, series and breakdowns.

pub(crate) mod breakdown;
pub(crate) mod buckets;
pub(crate) mod show;
pub(crate) mod sparklines;
pub(crate) mod subject;

use chrono::{DateTime, Utc};

use crate::store::clicks::pieces::{END, Range};
use crate::web::dates::Window;

impl From<Window> for Range {
    /// The window in milliseconds; an open one ends at the end of time.
    fn from(window: Window) -> Self {
        let millis = |time: DateTime<Utc>| time.timestamp_millis().clamp(0, END);
        Self { start: millis(window.start), end: window.end.map_or(END, millis) }
    }
}

/// (conversions / unique clicks) × 100, rounded to two decimals; 0 without clicks.
pub(crate) fn conversion_rate(conversions: u64, unique_clicks: u64) -> f64 {
    if unique_clicks == 0 {
        return 0.0;
    }
    (conversions as f64 / unique_clicks as f64 * 10_000.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_conversion_rate_is_a_percentage_of_unique_clicks() {
        assert_eq!(conversion_rate(1, 3), 33.33);
        assert_eq!(conversion_rate(2, 3), 66.67);
        assert_eq!(conversion_rate(0, 0), 0.0);
        assert_eq!(conversion_rate(5, 0), 0.0);
        assert_eq!(conversion_rate(7, 7), 100.0);
    }
}

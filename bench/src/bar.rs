//! Targets, and whether a run reaches them.

use serde::Serialize;

/// A measured value and its target.
#[derive(Debug, Serialize)]
pub(crate) struct Bar {
    name: String,
    value: f64,
    /// The least value, or the most.
    bar: f64,
    is_at_least: bool,
    is_met: bool,
}

impl Bar {
    /// A value that must be at least `bar`.
    pub(crate) fn at_least(name: impl Into<String>, value: f64, bar: f64) -> Self {
        Self { name: name.into(), value, bar, is_at_least: true, is_met: value >= bar }
    }

    /// A value that must be at most `bar`.
    pub(crate) fn at_most(name: impl Into<String>, value: f64, bar: f64) -> Self {
        Self { name: name.into(), value, bar, is_at_least: false, is_met: value <= bar }
    }

    /// Returns a line for people.
    pub(crate) fn text(&self) -> String {
        let Self { name, value, bar, .. } = self;
        let sign = if self.is_at_least { ">=" } else { "<=" };
        format!(
            "{:<6} {name:<44} {value:.3} (target {sign} {bar:.3})",
            if self.is_met { "met" } else { "MISSED" }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_equal_to_its_bar_meets_it() {
        assert!(Bar::at_least("a", 0.5, 0.5).is_met && Bar::at_most("a", 0.5, 0.5).is_met);
        assert!(Bar::at_least("a", 0.4, 0.5).text().starts_with("MISSED"));
        assert!(Bar::at_most("a", 0.6, 0.5).text().starts_with("MISSED"));
    }
}

//! Numbers that were promised.

use serde::Serialize;

/// A number that was promised, and what it is.
#[derive(Debug, Serialize)]
pub(crate) struct Bar {
    name: String,
    value: f64,
    /// The least that it may be, or the most.
    bar: f64,
    is_at_least: bool,
    is_met: bool,
    target: f64,
}

impl Bar {
    /// A number that may not be below `bar`.
    pub(crate) fn at_least(name: impl Into<String>, value: f64, bar: f64, target: f64) -> Self {
        Self { name: name.into(), value, bar, is_at_least: true, is_met: value >= bar, target }
    }

    /// A number that may not be above `bar`.
    pub(crate) fn at_most(name: impl Into<String>, value: f64, bar: f64, target: f64) -> Self {
        Self { name: name.into(), value, bar, is_at_least: false, is_met: value <= bar, target }
    }

    /// The result for people.
    pub(crate) fn text(&self) -> String {
        let (sign, met) =
            (if self.is_at_least { ">=" } else { "<=" }, if self.is_met { "met" } else { "MISSED" });
        format!(
            "{met:<6} {:<44} {:.3} (bar {sign} {:.3}, target {:.3})",
            self.name, self.value, self.bar, self.target
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_met_by_its_own_number() {
        assert!(Bar::at_least("a", 0.5, 0.5, 1.0).is_met && Bar::at_most("a", 0.5, 0.5, 0.1).is_met);
        assert!(Bar::at_least("a", 0.4, 0.5, 1.0).text().starts_with("MISSED"));
        assert!(Bar::at_most("a", 0.6, 0.5, 0.1).text().starts_with("MISSED"));
    }
}

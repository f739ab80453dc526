//! Plans: what an account may do.

use std::fmt;
use std::str::FromStr;

/// A plan, evaluated on every request: a change acts at once, on keys that exist too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
pub(crate) enum Plan {
    /// The smallest.
    Free,
    /// Up to 250 links.
    Starter,
    /// Up to 2,500 links.
    Pro,
    /// The first with write access over the API, and webhooks.
    Agency,
    /// Without limits on links and requests.
    Business,
}

impl Plan {
    /// The name in the database, on the command line and in answers.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Starter => "starter",
            Self::Pro => "pro",
            Self::Agency => "agency",
            Self::Business => "business",
        }
    }

    /// Every plan.
    pub(crate) const ALL: [Self; 5] = [Self::Free, Self::Starter, Self::Pro, Self::Agency, Self::Business];

    /// Requests in a minute over all keys of an account; `None` is unlimited.
    pub(crate) const fn requests_per_minute(self) -> Option<i64> {
        match self {
            Self::Free => Some(60),
            Self::Starter => Some(120),
            Self::Pro => Some(300),
            Self::Agency => Some(600),
            Self::Business => None,
        }
    }

    /// Whether keys may write, and webhooks are delivered.
    pub(crate) const fn has_write(self) -> bool {
        matches!(self, Self::Agency | Self::Business)
    }

    /// How many links the account may have over all its workspaces; `None` is unlimited.
    pub(crate) const fn link_cap(self) -> Option<i64> {
        match self {
            Self::Free => Some(25),
            Self::Starter => Some(250),
            Self::Pro => Some(2_500),
            Self::Agency => Some(25_000),
            Self::Business => None,
        }
    }

    /// Days before today that queries reach back to.
    pub(crate) const fn retention_days(self) -> u64 {
        match self {
            Self::Free => 30,
            Self::Starter => 90,
            Self::Pro => 365,
            Self::Agency => 730,
            Self::Business => 1_095,
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that names no plan.
#[derive(Debug, thiserror::Error)]
#[error("unknown plan {0:?}")]
pub(crate) struct UnknownPlan(String);

impl FromStr for Plan {
    type Err = UnknownPlan;

    fn from_str(text: &str) -> Result<Self, UnknownPlan> {
        Self::ALL.into_iter().find(|plan| plan.as_str() == text).ok_or_else(|| UnknownPlan(text.to_owned()))
    }
}

impl TryFrom<String> for Plan {
    type Error = UnknownPlan;

    fn try_from(text: String) -> Result<Self, UnknownPlan> {
        text.parse()
    }
}

//! What a query asks about.

use std::fmt::Write as _;

use schemas::message::Class;
use serde::{Deserialize, Serialize};
use service::http::ApiError;
use uuid::Uuid;

use super::pieces::Range;

/// The link id of the workspace's own rollups.
const WHOLE_WORKSPACE: Uuid = Uuid::nil();

/// Returns the condition that excludes clicks of a workspace's deleted links, also before they are purged. Links that
/// an earlier release deleted may be stored without their workspace.
fn not_deleted(workspace: Uuid) -> String {
    let zero = Uuid::nil();
    format!(
        "link_id NOT IN (SELECT link_id FROM deleted_links \
         WHERE workspace_id IN (toUUID('{zero}'), toUUID('{workspace}')))"
    )
}

/// Which classes of clicks count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Classes {
    /// One class.
    One(Class),
    /// Every click.
    All,
}

impl Classes {
    const NAMED: [(&str, Self); 4] = [
        ("human", Self::HUMAN),
        ("bot", Self::One(Class::Bot)),
        ("preview", Self::One(Class::Preview)),
        ("all", Self::All),
    ];

    /// The default.
    pub(crate) const HUMAN: Self = Self::One(Class::Human);

    /// Parses a name.
    pub(crate) fn parse(text: &str) -> Result<Self, ApiError> {
        let found = Self::NAMED.into_iter().find(|(name, _)| *name == text).map(|(_, classes)| classes);
        found.ok_or_else(|| ApiError::invalid_field("class", "must be human, bot, preview or all"))
    }

    /// Returns the condition on column `class`.
    pub(super) fn condition(self) -> String {
        match self {
            Self::One(class) => format!("class = '{class}'"),
            Self::All => "true".to_owned(),
        }
    }
}

/// The links of a question.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Of<'a> {
    /// A workspace as a whole.
    Workspace,
    /// Some of its links.
    Links(&'a [Uuid]),
    /// Each of its links with clicks.
    EachLink,
}

impl Of<'_> {
    /// Returns the condition on column `link_id` of raw rows.
    pub(super) fn of_raw(&self, workspace: Uuid) -> String {
        match self {
            Self::Workspace | Self::EachLink => not_deleted(workspace),
            Self::Links(links) => one_of(links),
        }
    }

    /// Returns the workspaces whose rows of table `slices` determine active versions. A workspace's own rows are for
    /// its rollups as a whole.
    pub(super) fn of_slices(&self, workspace: Uuid) -> Vec<Uuid> {
        match self {
            Self::Workspace => vec![Uuid::nil(), workspace],
            Self::Links(_) | Self::EachLink => vec![Uuid::nil()],
        }
    }

    /// Returns the condition on column `link_id` of rollups.
    pub(super) fn of_rollups(&self, workspace: Uuid) -> String {
        match self {
            Self::Workspace => one_of(&[WHOLE_WORKSPACE]),
            Self::EachLink => {
                format!("link_id != toUUID('{WHOLE_WORKSPACE}') AND {}", not_deleted(workspace))
            }
            Self::Links(links) => one_of(links),
        }
    }
}

pub(super) fn one_of(links: &[Uuid]) -> String {
    let mut list = String::from("link_id IN (");
    for (place, link) in links.iter().enumerate() {
        let comma = if place == 0 { "" } else { ", " };
        // Writing into a String cannot fail.
        let _ = write!(list, "{comma}toUUID('{link}')");
    }
    list + ")"
}

/// The clicks that a query is about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Question<'a> {
    pub(crate) workspace: Uuid,
    pub(crate) of: Of<'a>,
    pub(crate) classes: Classes,
    /// When they happened.
    pub(crate) window: Range,
    /// Only clicks that the broker had by then, in milliseconds since 1970.
    pub(crate) taken_until: Option<i64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_parsed_from_its_name() {
        for (name, classes) in Classes::NAMED {
            assert_eq!(Classes::parse(name).unwrap(), classes);
        }
        for bad in ["", "Human", "humans", "human,bot"] {
            assert!(Classes::parse(bad).is_err(), "{bad}");
        }
    }
}

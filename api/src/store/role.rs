//! Roles of members.

use serde::Deserialize;

/// What a member may do.
#[derive(Debug, Clone, Copy, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// May also change members and workspaces, and sees the audit trail.
    Owner,
    /// May see and change everything else.
    #[serde(alias = "member")]
    #[value(alias = "member")]
    Editor,
    /// May see links and counts, but neither personal fields nor webhooks, and change nothing.
    Viewer,
}

impl Role {
    /// The name in the database and in answers.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Editor => "editor",
            Self::Viewer => "viewer",
        }
    }
}

impl TryFrom<String> for Role {
    type Error = UnknownRole;

    fn try_from(text: String) -> Result<Self, UnknownRole> {
        [Self::Owner, Self::Editor, Self::Viewer]
            .into_iter()
            .find(|role| role.as_str() == text)
            .ok_or(UnknownRole(text))
    }
}

/// The database has another role than this build knows.
#[derive(Debug, thiserror::Error)]
#[error("unknown role {0:?}")]
pub(crate) struct UnknownRole(String);

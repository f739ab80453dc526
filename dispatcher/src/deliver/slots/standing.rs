//! What is known of an endpoint, and how much is claimed ahead for it.

/// Deliveries that are claimed for a quick endpoint, in multiples of the requests that may be under way to it: it
/// must not wait for the database after each handful.
pub(super) const AHEAD: usize = 8;

/// How an endpoint did lately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Standing {
    /// It answers.
    Proven,
    /// It has not been asked yet, or too long ago.
    Unknown,
    /// The last attempt failed, or takes long.
    Failing,
}

impl Standing {
    pub(super) const ALL: [Self; 3] = [Self::Proven, Self::Unknown, Self::Failing];
}

//! The standing of an endpoint, and how many deliveries are claimed ahead for it.

/// Deliveries that are claimed for a fast endpoint, as a multiple of its requests in flight, so that it does not wait
/// for the database after each few.
pub(super) const AHEAD: usize = 8;

/// The recent results of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Standing {
    /// It answers.
    Proven,
    /// It was not tried yet, or too long ago.
    Unknown,
    /// The last attempt failed or is slow.
    Failing,
}

impl Standing {
    pub(super) const ALL: [Self; 3] = [Self::Proven, Self::Unknown, Self::Failing];
}

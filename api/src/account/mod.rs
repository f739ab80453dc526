//! Accounts: what they may do, who belongs to them, and who is signed in.

pub(crate) mod audit;
pub(crate) mod members;
pub(crate) mod quota;
pub(crate) mod sessions;
pub(crate) mod token;
pub(crate) mod workspaces;

//! Sessions: who is signed in at the dashboard.
//!
//! A session is a random token in a cookie; the database has its digest. Each sign-in draws a new one, so none that
//! somebody else has put into a browser is ever signed in.

mod cookie;
mod deployment_hash;
pub(crate) mod member;
mod origin;
pub(crate) mod password;
pub(crate) mod setup;
pub(crate) mod show;
pub(crate) mod sign_in;
mod throttle;

//! Sessions: who is signed in at the dashboard.
//!
//! A session is a random token in a cookie; the database stores its digest. Each sign-in draws a new token, so a token
//! that somebody planted in a browser is never signed in.

mod cookie;
mod deployment_hash;
mod device;
pub(crate) mod devices;
pub(crate) mod member;
pub(crate) mod new_password;
mod origin;
pub(crate) mod password;
pub(crate) mod setup;
pub(crate) mod show;
pub(crate) mod sign_in;
mod throttle;
mod totp;
pub(crate) mod two_factor;

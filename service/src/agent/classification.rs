//! The result of classifying a User-Agent.

use std::sync::Arc;

/// The kind of client that made a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// A person's browser.
    Human,
    /// A crawler, a monitor, a library, a command-line client, an assistant that fetches a page for a person.
    Bot,
    /// A prefetch, or an app that shows a preview of the destination.
    Preview,
}

/// The classification of a User-Agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agent {
    /// The kind of client.
    pub class: Class,
    /// `desktop`, `mobile`, `tablet` or `other`.
    pub device_type: &'static str,
    /// Family of the browser, when known. The set of names is limited: a visitor cannot add one.
    pub browser: Option<Arc<str>>,
    /// Family of the operating system, when known; from a limited set too.
    pub os: Option<Arc<str>>,
}

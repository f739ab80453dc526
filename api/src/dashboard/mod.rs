//! The dashboard, below `/app`: its page, and operations that only the page has.

pub(crate) mod keys;
pub(crate) mod names;
pub(crate) mod page;
mod store;

/// Whether a path is the dashboard's, or leads to it.
pub(crate) fn is_at(path: &str) -> bool {
    path == "/" || path.strip_prefix("/app").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dashboard_is_below_its_own_segment() {
        for path in ["/", "/app", "/app/", "/app/links", "/app/api/session"] {
            assert!(is_at(path), "{path}");
        }
        for path in ["/apps", "/api/app", "/application/x"] {
            assert!(!is_at(path), "{path}");
        }
    }
}

//! The exports that are being sent, limited for each workspace.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use service::http::ApiError;
use uuid::Uuid;

/// Maximum concurrent exports of a workspace in one process.
const MAX_EXPORTS: usize = 4;

/// When to retry: an export of a small workspace takes less, of a large one more.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// Counts the exports of each workspace.
#[derive(Debug, Clone, Default)]
pub(crate) struct Exports(Arc<Mutex<HashMap<Uuid, usize>>>);

/// An export in progress; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Export {
    exports: Exports,
    workspace: Uuid,
}

impl Exports {
    /// Begins an export.
    ///
    /// # Errors
    /// 429 when the workspace has [`MAX_EXPORTS`].
    pub(crate) fn begin(&self, workspace: Uuid) -> Result<Export, ApiError> {
        let mut running = self.0.lock();
        let count = running.entry(workspace).or_default();
        if *count >= MAX_EXPORTS {
            let message = format!("{MAX_EXPORTS} exports of this workspace are running. Try again later.");
            return Err(ApiError::rate_limited(message).with_retry_after(RETRY_AFTER));
        }
        *count += 1;
        Ok(Export { exports: self.clone(), workspace })
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        let mut running = self.exports.0.lock();
        if let Some(count) = running.get_mut(&self.workspace) {
            *count -= 1;
            if *count == 0 {
                running.remove(&self.workspace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workspace_has_four_exports_at_a_time() {
        let exports = Exports::default();
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let mut running: Vec<Export> = (0..MAX_EXPORTS).map(|_| exports.begin(one).unwrap()).collect();
        assert!(exports.begin(one).is_err());
        assert!(exports.begin(other).is_ok());
        running.pop();
        running.push(exports.begin(one).unwrap());
        assert!(exports.begin(one).is_err());
        running.clear();
        assert!(exports.0.lock().is_empty());
    }
}

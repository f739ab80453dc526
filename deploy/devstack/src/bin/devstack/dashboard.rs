//! Builds the dashboard with npm.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context as _;
use devstack::process::run;

use crate::stack::Stack;

/// The sources, in the dashboard's folder.
const SOURCES: [&str; 4] = ["src", "index.html", "package-lock.json", "vite.config.js"];

/// Builds the dashboard when it is missing or older than its sources. Without npm the stack runs without it.
pub(crate) async fn build(repository: &Path, stack: &Arc<Stack>) {
    let folder = repository.join("api/dashboard");
    if is_built(&folder) {
        return;
    }
    if !has_npm() {
        stack.report("continuing without the dashboard: npm is not installed");
        return;
    }
    stack.report("building the dashboard");
    if let Err(error) = build_in(&folder).await {
        stack.report(&format!("continuing without the dashboard: {error:#}"));
    }
}

async fn build_in(folder: &Path) -> anyhow::Result<()> {
    let npm = |arguments: &[&str]| {
        let mut npm = Command::new("npm");
        npm.current_dir(folder).args(arguments);
        npm
    };
    // npm writes this file after an installation.
    let installed = last_change(&folder.join("node_modules/.package-lock.json"));
    if installed.is_none() || installed < last_change(&folder.join("package-lock.json")) {
        run("`npm ci`", npm(&["ci", "--ignore-scripts"])).await.context("installing packages")?;
    }
    run("`npm run build`", npm(&["run", "build"])).await.context("building")?;
    Ok(())
}

fn has_npm() -> bool {
    Command::new("npm").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Returns whether the dashboard is built from the current sources.
fn is_built(folder: &Path) -> bool {
    let built = last_change(&folder.join("dist/index.html"));
    built.is_some() && SOURCES.iter().all(|source| last_change(&folder.join(source)) <= built)
}

/// Returns the last change of a file or of any file in a folder; `None` when there is none.
fn last_change(path: &Path) -> Option<SystemTime> {
    let metadata = path.metadata().ok()?;
    if !metadata.is_dir() {
        return metadata.modified().ok();
    }
    let entries = path.read_dir().ok()?;
    entries.filter_map(|entry| last_change(&entry.ok()?.path())).max()
}

#[cfg(test)]
mod tests {
    use std::fs::{File, create_dir_all};
    use std::time::{Duration, SystemTime};

    use devstack::scratch::Scratch;

    use super::*;

    #[test]
    fn a_newer_source_requires_a_build() {
        let scratch = Scratch::new("page").unwrap();
        let folder = scratch.path();
        let write = |path: &str, age: u64| {
            let path = folder.join(path);
            create_dir_all(path.parent().unwrap()).unwrap();
            let file = File::create(path).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
        };
        for source in ["src/pages/Links.svelte", "index.html", "package-lock.json", "vite.config.js"] {
            write(source, 100);
        }
        assert!(!is_built(folder), "nothing is built");
        write("dist/index.html", 50);
        assert!(is_built(folder));
        write("src/pages/Link.svelte", 10);
        assert!(!is_built(folder));
    }
}

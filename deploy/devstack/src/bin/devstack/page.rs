//! The dashboard's page, which npm builds.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context as _;
use devstack::process::run;

use crate::stack::Stack;

/// What the page is built of, below its folder.
const SOURCES: [&str; 4] = ["src", "index.html", "package-lock.json", "vite.config.js"];

/// Builds the page where npm is there and it is not built yet, or of older sources. `api` does without it and says so.
pub(crate) async fn build(repository: &Path, stack: &Arc<Stack>) {
    let folder = repository.join("api/dashboard");
    if is_built(&folder) {
        return;
    }
    if !has_npm() {
        stack.tell("continuing without the dashboard: npm is not installed");
        return;
    }
    stack.tell("building the dashboard");
    if let Err(error) = build_in(&folder).await {
        stack.tell(&format!("continuing without the dashboard: {error:#}"));
    }
}

async fn build_in(folder: &Path) -> anyhow::Result<()> {
    let npm = |arguments: &[&str]| {
        let mut npm = Command::new("npm");
        npm.current_dir(folder).args(arguments);
        npm
    };
    // What npm has installed last is noted in this file.
    let installed = newest(&folder.join("node_modules/.package-lock.json"));
    if installed.is_none() || installed < newest(&folder.join("package-lock.json")) {
        run("`npm ci`", npm(&["ci", "--ignore-scripts"])).await.context("installing its packages")?;
    }
    run("`npm run build`", npm(&["run", "build"])).await.context("building it")?;
    Ok(())
}

fn has_npm() -> bool {
    Command::new("npm").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Whether the built page is there, and no source is newer.
fn is_built(folder: &Path) -> bool {
    let built = newest(&folder.join("dist/index.html"));
    built.is_some() && SOURCES.iter().all(|source| newest(&folder.join(source)) <= built)
}

/// When a file, or a file below a folder, was last changed; none where there is none.
fn newest(path: &Path) -> Option<SystemTime> {
    let metadata = path.metadata().ok()?;
    if !metadata.is_dir() {
        return metadata.modified().ok();
    }
    let entries = path.read_dir().ok()?;
    entries.filter_map(|entry| newest(&entry.ok()?.path())).max()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::fs::{File, create_dir_all};
    use std::time::{Duration, SystemTime};

    use devstack::scratch::Scratch;

    use super::*;

    #[test]
    fn a_page_is_built_again_when_a_source_is_newer() {
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

//! Has cargo build the crate again when the dashboard's page was built.

fn main() {
    // Builds with debug assertions read the page from the disk.
    let is_embedded = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    // Without a built page its folder is watched, and that is enough: cargo looks at everything below it.
    let page = if std::path::Path::new("dashboard/dist").exists() { "dashboard/dist" } else { "dashboard" };
    println!("cargo::rerun-if-changed={}", if is_embedded { page } else { "build.rs" });
}

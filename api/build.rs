//! Has cargo build the crate again when the dashboard's page was built, which only optimised builds embed.

fn main() {
    let is_optimised = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    // Without a built page its folder is watched, and that is enough: cargo looks at everything below it.
    let page = if std::path::Path::new("dashboard/dist").exists() { "dashboard/dist" } else { "dashboard" };
    println!("cargo::rerun-if-changed={}", if is_optimised { page } else { "build.rs" });
}

//! Has cargo build the crate again when the dashboard's page was built.

fn main() {
    // Without a built page its folder is watched, and that is enough: cargo looks at everything below it.
    let built = std::path::Path::new("dashboard/dist");
    println!("cargo::rerun-if-changed={}", if built.exists() { "dashboard/dist" } else { "dashboard" });
}

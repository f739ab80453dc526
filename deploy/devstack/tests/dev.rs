//! Tests the script `./dev` with fake compilers that record their arguments.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;

use devstack::scratch::Scratch;

const SCRIPT: &str = include_str!("../../../dev");
const CARGO_TOML: &str = include_str!("../../../Cargo.toml");

/// A fake cargo, which builds a `devstack` that prints its repository.
const CARGO: &str = r#"#!/bin/sh
echo "cargo $*" >> "$CALLS"
[ "$1" = build ] || exit 0
mkdir -p target/debug
printf '#!/bin/sh\necho "root $DEVSTACK_ROOT"\n' > target/debug/devstack.$$
chmod +x target/debug/devstack.$$
mv target/debug/devstack.$$ target/debug/devstack
"#;

struct Clone {
    folder: PathBuf,
    tools: PathBuf,
}

impl Clone {
    /// Creates a clone with fake compilers of this version of Rust.
    fn new(scratch: &Scratch, name: &str, rust: &str) -> Self {
        let (folder, tools) = (scratch.path().join(name), scratch.path().join("tools"));
        fs::create_dir_all(&folder).unwrap();
        fs::create_dir_all(&tools).unwrap();
        write(&folder.join("dev"), SCRIPT);
        write(&folder.join("Cargo.toml"), CARGO_TOML);
        write(&tools.join("cargo"), CARGO);
        write(&tools.join("rustc"), &format!("#!/bin/sh\necho 'rustc {rust} (0000000 2026-01-01)'\n"));
        Self { folder, tools }
    }

    fn dev(&self, command: &str) -> Output {
        self.dev_on(command, &format!("{}:{}", self.tools.display(), std::env::var("PATH").unwrap()))
    }

    fn dev_on(&self, command: &str, path: &str) -> Output {
        let mut dev = Command::new(self.folder.join("dev"));
        dev.arg(command).env("PATH", path).env("CALLS", self.calls());
        dev.env("CARGO_HOME", &self.tools);
        // External engines make their installers unnecessary.
        dev.env("DEVSTACK_ROOT", "/somewhere/else").env_remove("CARGO_TARGET_DIR");
        dev.envs(["KAFKA_BROKERS", "CLICKHOUSE_URL", "DATABASE_URL"].map(|name| (name, "given")));
        dev.output().unwrap()
    }

    fn calls(&self) -> PathBuf {
        self.tools.join("calls")
    }

    fn assert_root_is_this_clone(&self) {
        let output = self.dev("status");
        let printed = String::from_utf8(output.stdout).unwrap();
        assert_eq!(printed, format!("root {}\n", self.folder.display()), "{:?}", output.stderr);
    }
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_moved_clone_is_rebuilt_and_uses_its_new_folder() {
    let scratch = Scratch::new("dev").unwrap();
    let clone = Clone::new(&scratch, "original", "1.95.0");
    clone.assert_root_is_this_clone();
    clone.assert_root_is_this_clone();
    let calls = fs::read_to_string(clone.calls()).unwrap();
    assert!(!calls.contains("clean"), "{calls}");

    let moved = scratch.path().join("moved");
    fs::rename(&clone.folder, &moved).unwrap();
    let moved = Clone { folder: moved, ..clone };
    moved.assert_root_is_this_clone();
    let calls = fs::read_to_string(moved.calls()).unwrap();
    assert!(calls.contains("clean --quiet --workspace\n"), "{calls}");
    fs::remove_file(moved.calls()).unwrap();
    moved.assert_root_is_this_clone();
    let calls = fs::read_to_string(moved.calls()).unwrap();
    assert!(!calls.contains("clean"), "{calls}");
}

#[test]
fn simultaneous_calls_clean_a_moved_clone_once() {
    let scratch = Scratch::new("dev").unwrap();
    let clone = Clone::new(&scratch, "original", "1.95.0");
    let at_once = |clone: &Clone| {
        thread::scope(|scope| (0..50).for_each(|_| drop(scope.spawn(|| clone.assert_root_is_this_clone()))));
        fs::read_to_string(clone.calls()).unwrap().matches("clean --quiet --workspace\n").count()
    };
    assert_eq!(at_once(&clone), 0);
    let moved = scratch.path().join("moved");
    fs::rename(&clone.folder, &moved).unwrap();
    assert_eq!(at_once(&Clone { folder: moved, ..clone }), 1);
}

#[test]
fn an_older_rust_is_rejected_with_the_update_command() {
    let scratch = Scratch::new("dev").unwrap();
    let output = Clone::new(&scratch, "clone", "1.85.0").dev("status");
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("is 1.85.0") && error.contains("rustup update stable"), "{error}");
}

#[test]
fn without_python_venv_only_tests_fail_and_name_the_package() {
    let scratch = Scratch::new("dev").unwrap();
    let clone = Clone::new(&scratch, "clone", "1.95.0");
    // Not root, which would install it.
    write(&clone.tools.join("id"), "#!/bin/sh\necho 1000\n");
    write(&clone.tools.join("python3"), "#!/bin/sh\nexit 1\n");
    // The machine may have the runner of the tests.
    for name in ["bash", "dirname", "g++", "grep", "head", "make", "pkg-config"] {
        let folders = std::env::var_os("PATH").unwrap();
        let found =
            std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|file| file.exists());
        symlink(found.unwrap(), clone.tools.join(name)).unwrap();
    }
    let output = clone.dev_on("test", clone.tools.to_str().unwrap());
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("missing on this machine: python3-venv"), "{error}");
    clone.assert_root_is_this_clone();
}

#[test]
fn wrong_usage_exits_with_64() {
    let code = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_devstack")).args(arguments).output().unwrap().status.code()
    };
    assert_eq!(code(&["nonsense"]), Some(64));
    assert_eq!(code(&["up", "--listen", "nowhere"]), Some(64));
    assert_eq!(code(&[]), Some(64));
    assert_eq!(code(&["--help"]), Some(0));
}

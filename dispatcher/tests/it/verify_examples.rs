//! The documentation's examples that check a signature, in every language, against the test vectors and real
//! deliveries.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use schemas::message::{Class, LinkEventKind};
use tests::faults::progress;
use tests::receiver::{Answer, Receiver};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::world::{SECRET, World};

/// An example, as a command that is run with the header and a time.
struct Example {
    language: &'static str,
    program: PathBuf,
    arguments: Vec<PathBuf>,
    // The folder with the built Go program, removed with the example.
    _built: Option<devstack::scratch::Scratch>,
}

impl Example {
    /// Returns whether the example accepts the signature at this time.
    async fn accepts(&self, secret: &str, header: &str, body: &[u8], now: i64) -> bool {
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .args([header, &now.to_string()])
            .env("WEBHOOK_SECRET", secret)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(body).await.unwrap();
        drop(stdin);
        let output = child.wait_with_output().await.unwrap();
        match (output.status.code(), output.stdout.as_slice()) {
            (Some(0), b"verified\n") => true,
            (Some(1), b"NOT VERIFIED\n") => false,
            _ => panic!("{}: {output:?}", self.language),
        }
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples/verify")
}

/// Returns the examples whose language is installed, and prints the others to standard error.
async fn examples() -> Vec<Example> {
    let mut examples = vec![rust()];
    for (language, program, script) in [("Node", "node", "verify.mjs"), ("PHP", "php", "verify.php")] {
        if is_installed(language, program, "--version").await {
            let arguments = vec![folder().join(script)];
            examples.push(Example { language, program: program.into(), arguments, _built: None });
        }
    }
    if is_installed("Go", "go", "version").await {
        examples.push(go().await);
    }
    examples
}

async fn is_installed(language: &str, program: &str, argument: &str) -> bool {
    let found =
        Command::new(program).arg(argument).output().await.is_ok_and(|output| output.status.success());
    if !found {
        progress(&format!("SKIPPED: the {language} example, because {program} is not installed"));
    }
    found
}

/// Returns the Rust example, which Cargo builds with the package's tests.
fn rust() -> Example {
    // From …/target/debug/deps/it-0123 to …/target/debug/examples/verify.
    let running = std::env::current_exe().unwrap();
    let program = running.ancestors().nth(2).unwrap().join("examples/verify");
    assert!(program.is_file(), "build it with: cargo build -p dispatcher --example verify");
    Example { language: "Rust", program, arguments: Vec::new(), _built: None }
}

/// Builds the Go example once, because `go run` takes a second each time.
async fn go() -> Example {
    let scratch = devstack::scratch::Scratch::new("go").unwrap();
    let program = scratch.path().join("verify");
    let output = Command::new("go")
        .args(["build", "-o"])
        .arg(&program)
        .arg(folder().join("verify.go"))
        // Uses neither the user's cache nor the network.
        .env("GOCACHE", scratch.path().join("cache"))
        .envs([("GOFLAGS", "-mod=mod"), ("GOPROXY", "off"), ("GO111MODULE", "off"), ("GOTOOLCHAIN", "local")])
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Example { language: "Go", program, arguments: Vec::new(), _built: Some(scratch) }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_examples_verify_alike() {
    // Secret, time, body, hex; computed with other implementations.
    let vectors = [
        (
            "whsec_test_secret",
            1_614_265_330,
            r#"{"test": 2432232314}"#,
            "10c96c6fd3f320fcfc264cdc4f476c15060ede8e8a08404cea2ddf3b72544a9c",
        ),
        ("whsec_test_secret", 1, "", "72a0d5db585ba2c43502db342967281f0d98f88ad9a739d64b64b0e90ec5b49c"),
        (
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            1_760_000_000,
            r#"{"id":"018f6a3e-7c1b-5b7e-9a51-2f1d3c4b5a69","event":"link.updated","created_at":"2025-10-09T08:53:20.123Z","data":{"name":"Café ☕ – 日本"}}"#,
            "c2597ec5ea483c989468c32830eedae52209a407888b58fbbc5a1a157bd380f4",
        ),
        (
            "secret",
            1_636_936_200,
            "hello !",
            "1b3d69df55f1e52f05224ba94a5162abeb17ef52cd7f4948c390f810d6a87e98",
        ),
    ];
    for example in examples().await {
        let language = example.language;
        for (secret, t, body, hex) in vectors {
            let header = format!("t={t},v1={hex}");
            assert!(example.accepts(secret, &header, body.as_bytes(), t).await, "{language}: {header}");
        }
        let (secret, t, body, v1) = vectors[0];
        let (body, good, zeros) = (body.as_bytes(), format!("t={t},v1={v1}"), "0".repeat(64));
        for (header, now) in [
            (good.clone(), t + 300),
            (good.clone(), t - 300),
            (format!("t={t},v1={zeros},v1={v1}"), t),
            (format!("t={t},v1={v1},v1={zeros}"), t),
            (format!("t={t},v0={zeros},v1={v1}"), t),
        ] {
            assert!(example.accepts(secret, &header, body, now).await, "{language}: {header} at {now}");
        }
        for (header, now) in [
            (good.clone(), t + 301),
            (good.clone(), t - 301),
            (String::new(), t),
            ("t=".to_owned(), t),
            ("v1=".to_owned(), t),
            (format!("v1={v1}"), t),
            (format!("t={t}"), t),
            (format!("t=-{t},v1={v1}"), t),
            (format!("t=+{t},v1={v1}"), t),
            (format!("t= {t},v1={v1}"), t),
            (format!("t=x,v1={v1}"), t),
            (format!("t={t}.0,v1={v1}"), t),
            (format!("t={t}000000000000000000000,v1={v1}"), t),
            (format!("t={t},t={t},v1={v1}"), t),
            (format!("t={t},v1="), t),
            (format!("t={t},v1={}", &v1[1..]), t),
            (format!("t={t},v1={v1}0"), t),
            (format!("t={t},v1={}", v1.to_uppercase()), t),
            (format!("t={t},v1=\u{e9}"), t),
            (format!("t={t},v0={v1}"), t),
            (format!("t={t},v1={zeros}"), t),
            ("=,=,=".to_owned(), t),
        ] {
            assert!(!example.accepts(secret, &header, body, now).await, "{language}: {header} at {now}");
        }
        assert!(
            !example.accepts(secret, &good, b"{\"test\": 2432232315}", t).await,
            "{language}: another body"
        );
        assert!(!example.accepts("whsec_other", &good, body, t).await, "{language}: another secret");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_example_verifies_real_deliveries_under_both_secrets() {
    const NEW: &str = "whsec_bmV3IHNlY3JldA==";
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Status(200)).await;
    let workspace = world.workspace("business").await;
    let events = ["click.created", "link.created", "link.updated", "link.deleted"];
    let endpoint = world.endpoint(workspace, &receiver.url("/"), &events).await;
    let dispatcher = world.dispatcher().await;
    world.click(workspace, Class::Human).await;
    for event in [LinkEventKind::Created, LinkEventKind::Updated, LinkEventKind::Deleted] {
        world.link_event(workspace, event).await;
    }
    receiver.receives_at_least(4).await;
    world.rotate(endpoint, NEW, crate::world::SECRET_KEYS).await;
    world.click(workspace, Class::Human).await;
    receiver.receives_at_least(5).await;
    dispatcher.stop().await;

    let now = chrono::Utc::now().timestamp();
    let requests = receiver.requests();
    for example in examples().await {
        for (request, secrets) in
            requests.iter().zip([&[SECRET][..], &[SECRET], &[SECRET], &[SECRET], &[SECRET, NEW]])
        {
            let header = request.header("x-service-signature");
            for secret in secrets {
                assert!(example.accepts(secret, header, &request.body, now).await, "{}", example.language);
            }
            assert!(
                !example.accepts("whsec_other", header, &request.body, now).await,
                "{}",
                example.language
            );
        }
    }
}

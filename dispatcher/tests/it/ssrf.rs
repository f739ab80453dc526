//! Where a webhook must not go, row by row, through a dispatcher with the strict rules.

use std::io::Write as _;
use std::time::Duration;

use schemas::message::Class;
use tests::eventually;
use tests::receiver::{Answer, Receiver};

use crate::world::{SOON, World};

/// Hosts, and what is special about them. `PORT` is a port on which something listens that counts requests.
const MATRIX: [(&str, &str); 40] = [
    ("http://127.0.0.1:PORT/", "loopback over http"),
    ("https://127.0.0.1:PORT/", "loopback"),
    ("https://127.1:PORT/", "loopback, short"),
    ("https://2130706433:PORT/", "loopback, one number"),
    ("https://0x7f.1:PORT/", "loopback, hexadecimal"),
    ("https://0x7f000001:PORT/", "loopback, hexadecimal"),
    ("https://017700000001:PORT/", "loopback, octal"),
    ("https://127.0.0.1.:PORT/", "loopback, with a root"),
    ("https://１２７.0.0.1:PORT/", "loopback, full width"),
    ("https://0.0.0.0:PORT/", "this host"),
    ("https://localhost:PORT/", "a name for loopback"),
    ("https://localhost.:PORT/", "a name for loopback, with a root"),
    ("https://LOCALHOST:PORT/", "a name for loopback, upper case"),
    ("https://[::1]:PORT/", "loopback, IPv6"),
    ("https://[::]:PORT/", "this host, IPv6"),
    ("https://[::ffff:127.0.0.1]:PORT/", "mapped loopback"),
    ("https://[::127.0.0.1]:PORT/", "compatible loopback"),
    ("https://[64:ff9b::7f00:1]:PORT/", "loopback by NAT64"),
    ("https://[2002:7f00:1::]:PORT/", "loopback by 6to4"),
    ("https://[2001:0:7f00:1::]:PORT/", "Teredo"),
    ("https://10.0.0.1/", "private"),
    ("https://172.16.0.1/", "private"),
    ("https://192.168.0.1/", "private"),
    ("https://100.64.0.1/", "carrier-grade NAT"),
    ("https://169.254.169.254/latest/meta-data/", "metadata"),
    ("https://[::ffff:a9fe:a9fe]/", "mapped metadata"),
    ("https://100.100.100.200/", "metadata"),
    ("https://168.63.129.16/", "metadata"),
    ("https://192.0.0.192/", "metadata"),
    ("https://[fd00:ec2::254]/", "metadata, IPv6"),
    ("https://198.18.0.1/", "benchmarks"),
    ("https://224.0.0.1/", "multicast"),
    ("https://255.255.255.255/", "broadcast"),
    ("https://[fe80::1]/", "link-local"),
    ("https://[fc00::1]/", "unique local"),
    ("https://[fec0::1]/", "site-local"),
    ("https://[ff02::1]/", "multicast, IPv6"),
    ("https://user:pw@hooks.example/", "credentials"),
    ("https://hooks.example:6379/", "another server's port"),
    ("https://hop.example/abc", "our own short link"),
];

#[tokio::test(flavor = "multi_thread")]
async fn nothing_inside_is_reached_however_it_is_spelt() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Status(200)).await;
    let port = receiver.url("").rsplit_once(':').unwrap().1.to_owned();
    let mut rows = Vec::new();
    for chunk in MATRIX.chunks(20) {
        let workspace = world.workspace("business").await;
        for (url, what) in chunk {
            let url = url.replace("PORT", &port);
            rows.push((world.endpoint(workspace, &url, &["click.created"]).await, url, what));
        }
        world.click(workspace, Class::Human).await;
    }
    let dispatcher = world
        .dispatcher_with(|config| {
            config.webhook_allow = "".parse().unwrap();
            config.public_url = "https://hop.example".parse().unwrap();
            config.tuning.retry_base = Duration::from_secs(600);
        })
        .await;
    let mut report = String::new();
    let mut wrong = Vec::new();
    for (endpoint, url, what) in rows {
        let failures = eventually("the first attempt", SOON, async || {
            let failures = world.failures(endpoint).await;
            if failures.is_empty() { Err(()) } else { Ok(failures) }
        })
        .await;
        let class = failures[0].2.clone().unwrap_or_default();
        report += &format!("{class:<8} {url:<48} {what}\n");
        if class != "blocked" {
            wrong.push(url);
        }
    }
    // The harness shows this with --nocapture.
    std::io::stdout().write_all(report.as_bytes()).unwrap();
    assert!(wrong.is_empty(), "not blocked: {wrong:?}");
    assert_eq!(receiver.requests().len(), 0);
    dispatcher.stop().await;
}

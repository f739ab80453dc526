//! Forbidden destinations, row by row, tried through a dispatcher with the strict rules. The documentation's table
//! contains the results.

use std::time::Duration;

use schemas::message::Class;
use service::destination::DestinationRules;
use tests::eventually;
use tests::receiver::{Answer, Receiver};
use url::Url;

use crate::world::World;

/// The documentation, and the markers of its table.
const DOCUMENT: &str = include_str!("../../../docs/guides/webhooks.md");
const BEGIN: &str =
    "<!-- The dispatcher's test `no_spelling_of_an_internal_address_is_reached` writes this table. -->\n";
const END: &str = "<!-- End of the table. -->\n";

/// Base of the short links of this deployment.
const OWN: &str = "https://hop.example";

/// Hosts and their special property. On `PORT`, a listener counts requests.
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
async fn no_spelling_of_an_internal_address_is_reached() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Status(200)).await;
    let port = receiver.url("").rsplit_once(':').unwrap().1.to_owned();
    let mut rows = Vec::new();
    for chunk in MATRIX.chunks(20) {
        let workspace = world.workspace("business").await;
        for (url, what) in chunk {
            let real = url.replace("PORT", &port);
            let endpoint = world.endpoint(workspace, &real, &["click.created"]).await;
            rows.push((endpoint, at_creation(&real), *url, *what));
        }
        world.click(workspace, Class::Human).await;
    }
    let dispatcher = world
        .dispatcher_with(|config| {
            config.webhook_allow = "".parse().unwrap();
            config.public_url = OWN.parse().unwrap();
            config.tuning.retry_base = Duration::from_secs(600);
        })
        .await;
    let mut table = "| What it is | URL | Expected | Created by the API | Sent by the dispatcher |\n\
                     |---|---|---|---|---|\n"
        .to_owned();
    for (endpoint, created, url, what) in &rows {
        let failures = eventually("the first attempt", async || {
            let failures = world.failures(*endpoint).await;
            if failures.is_empty() { Err(()) } else { Ok(failures) }
        })
        .await;
        let class = failures[0].2.clone().unwrap_or_default();
        assert_eq!((class.as_str(), failures[0].3.as_str()), ("blocked", ""), "{url}");
        table += &format!("| {what} | `{url}` | no request | {created} | {class} |\n");
    }
    assert_eq!(receiver.count(), 0);
    dispatcher.stop().await;

    let (_, rest) = DOCUMENT.split_once(BEGIN).unwrap();
    let (documented, _) = rest.split_once(END).unwrap();
    assert!(documented == table, "docs/guides/webhooks.md has another table than this:\n{table}");
}

/// Returns the API's answer to an endpoint's URL, by the rules that it shares with the dispatcher.
fn at_creation(url: &str) -> &'static str {
    let rules = DestinationRules::new("".parse().unwrap(), Some(&OWN.parse().unwrap()));
    match Url::parse(url).map(|url| rules.check_url(&url).is_ok()) {
        Ok(true) => "yes: only a look-up tells",
        _ => "no: 400",
    }
}

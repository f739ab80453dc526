//! Countries of clicks, with country files that are replaced, damaged and removed while an edge uses them.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use devstack::install::Cache;
use devstack::scratch::Scratch;
use ingest::country::CountryFile;
use reqwest::Method;
use service::{Health, Shutdown};
use tests::engines::isolated;
use tests::{PATIENCE, eventually};

use crate::edge::{BROWSER, Edge, SpoolDir, clicks, link, live, publish};

/// The entry of a network with a country code.
#[derive(Clone, Copy)]
enum Entry {
    /// In the form of DB-IP.
    Flat(&'static str),
    /// In the form of MaxMind.
    Nested(&'static str),
}

/// Returns a file in MaxMind's format: `https://maxmind.github.io/MaxMind-DB/`.
fn file(networks: &[(&str, u8, Entry)]) -> Vec<u8> {
    /// A child of a node: another node, an offset in the data, or nothing.
    #[derive(Clone, Copy)]
    enum Child {
        Node(usize),
        Data(usize),
        Nothing,
    }
    let mut data = Vec::new();
    let mut nodes = vec![[Child::Nothing; 2]];
    for (address, prefix, entry) in networks {
        let offset = data.len();
        match entry {
            Entry::Flat(code) => map(&mut data, &[("country_code", text(code))]),
            Entry::Nested(code) => {
                let mut country = Vec::new();
                map(&mut country, &[("iso_code", text(code))]);
                map(&mut data, &[("country", country)]);
            }
        }
        // The tree contains IPv6 addresses; IPv4 addresses are at its beginning.
        let (bits, prefix) = match address.parse().unwrap() {
            IpAddr::V4(address) => (u128::from(u32::from(address)), prefix + 96),
            IpAddr::V6(address) => (u128::from(address), *prefix),
        };
        let mut node = 0;
        for depth in 0..prefix {
            let side = usize::from(bits >> (127 - depth) & 1 == 1);
            if depth + 1 == prefix {
                nodes[node][side] = Child::Data(offset);
            } else if let Child::Node(next) = nodes[node][side] {
                node = next;
            } else {
                nodes.push([Child::Nothing; 2]);
                let next = nodes.len() - 1;
                nodes[node][side] = Child::Node(next);
                node = next;
            }
        }
    }
    let count = nodes.len();
    let mut bytes = Vec::new();
    for child in nodes.iter().flatten() {
        let record = match child {
            Child::Node(node) => *node,
            Child::Nothing => count,
            // 16 zero bytes follow the tree.
            Child::Data(offset) => count + 16 + offset,
        };
        bytes.extend(&u32::try_from(record).unwrap().to_be_bytes()[1..]);
    }
    bytes.extend([0; 16]);
    bytes.extend(data);
    bytes.extend(b"\xab\xcd\xefMaxMind.com");
    let number = |kind: u8, value: u32| [&[kind << 5 | 4][..], &value.to_be_bytes()].concat();
    let mut description = Vec::new();
    map(&mut description, &[("en", text("of a test"))]);
    let metadata = [
        ("binary_format_major_version", vec![5 << 5 | 1, 2]),
        ("binary_format_minor_version", vec![5 << 5]),
        // Unsigned 64-bit numbers and arrays have their type minus seven in a separate byte.
        ("build_epoch", vec![4, 9 - 7, 0x6a, 0, 0, 0]),
        ("database_type", text("Test-Country")),
        ("description", description),
        ("ip_version", vec![5 << 5 | 1, 6]),
        ("languages", vec![0, 11 - 7]),
        ("node_count", number(6, u32::try_from(count).unwrap())),
        ("record_size", vec![5 << 5 | 1, 24]),
    ];
    map(&mut bytes, &metadata);
    bytes
}

fn text(text: &str) -> Vec<u8> {
    [&[2 << 5 | u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
}

fn map(bytes: &mut Vec<u8>, entries: &[(&str, Vec<u8>)]) {
    bytes.push(7 << 5 | u8::try_from(entries.len()).unwrap());
    for (name, value) in entries {
        bytes.extend(text(name));
        bytes.extend(value);
    }
}

fn germany() -> Vec<u8> {
    file(&[("192.0.2.0", 24, Entry::Flat("DE")), ("2001:db8::", 32, Entry::Nested("FR"))])
}

/// A country file that the test reloads.
struct Reloaded {
    file: CountryFile,
    health: Health,
}

impl Reloaded {
    fn new(path: &Path) -> Self {
        let health = Health::new(&Shutdown::new(PATIENCE));
        let mut file = CountryFile::new(path.to_owned(), health.check("countries"));
        file.reload_if_changed();
        Self { file, health }
    }

    /// Reloads the file if it changed; returns the countries of the addresses and the detail of the check.
    fn reload(&mut self, addresses: &[&str]) -> (Vec<Option<String>>, String) {
        self.file.reload_if_changed();
        let countries = self.file.countries();
        let report = serde_json::to_value(self.health.report()).unwrap();
        assert_eq!(report["ready"], true, "redirects need no countries");
        let detail = report["checks"]["countries"]["detail"].as_str().unwrap().to_owned();
        (addresses.iter().map(|address| countries.find(address.parse().unwrap())).collect(), detail)
    }
}

fn codes(codes: &[&str]) -> Vec<Option<String>> {
    codes.iter().map(|code| Some((*code).to_owned()).filter(|code| !code.is_empty())).collect()
}

#[test]
fn both_forms_of_entries_are_read() {
    let scratch = Scratch::new("countries").unwrap();
    let path = scratch.path().join("country.mmdb");
    fs::write(
        &path,
        file(&[
            ("192.0.2.0", 24, Entry::Flat("DE")),
            ("2001:db8::", 32, Entry::Nested("FR")),
            ("198.51.100.0", 24, Entry::Flat("not a country")),
        ]),
    )
    .unwrap();
    let addresses =
        ["192.0.2.7", "::ffff:192.0.2.7", "2001:db8:1::7", "203.0.113.7", "2001:db9::1", "198.51.100.1"];
    let (countries, detail) = Reloaded::new(&path).reload(&addresses);
    assert_eq!(countries, codes(&["DE", "DE", "FR", "", "", ""]));
    assert!(detail.contains("Test-Country of 2026-"), "{detail}");
}

#[test]
fn a_replaced_file_is_used_and_a_damaged_one_is_not() {
    let scratch = Scratch::new("countries").unwrap();
    let path = scratch.path().join("country.mmdb");
    let addresses = ["192.0.2.7"];
    let mut reloaded = Reloaded::new(&path);
    let (countries, detail) = reloaded.reload(&addresses);
    assert_eq!(countries, codes(&[""]));
    assert!(detail.contains("clicks have no country"), "{detail}");

    fs::write(&path, germany()).unwrap();
    assert_eq!(reloaded.reload(&addresses).0, codes(&["DE"]));

    let valid = file(&[("192.0.2.0", 24, Entry::Flat("AT"))]);
    let mut beyond = valid.clone();
    // The first record of the tree points beyond the end of the data.
    beyond[0..3].copy_from_slice(&[0xff; 3]);
    let mut cycle = valid.clone();
    cycle[0..3].copy_from_slice(&[0; 3]);
    let empty = file(&[]);
    let damages = [
        &cycle[..],
        &empty,
        &valid[..valid.len() / 2],
        &valid[..valid.len() - 1],
        &beyond,
        b"",
        b"no such format",
    ];
    for damaged in damages {
        fs::write(&path, damaged).unwrap();
        let (countries, detail) = reloaded.reload(&addresses);
        assert_eq!(countries, codes(&["DE"]), "{damaged:?}");
        assert!(detail.contains("the one before it stays in use"), "{detail}");
    }
    fs::remove_file(&path).unwrap();
    assert_eq!(reloaded.reload(&addresses).0, codes(&["DE"]));

    // Replaced atomically.
    let new = scratch.path().join("new");
    fs::write(&new, valid).unwrap();
    fs::rename(&new, &path).unwrap();
    let (countries, detail) = reloaded.reload(&addresses);
    assert_eq!(countries, codes(&["AT"]));
    assert!(!detail.contains("stays in use"), "{detail}");
}

#[tokio::test]
async fn the_downloaded_file_has_ipv4_and_ipv6_addresses() {
    let path = Cache::shared().data().await.unwrap().join("country.mmdb");
    let mut reloaded = Reloaded::new(&path);
    // Universities and registries, whose addresses have not changed for decades.
    let addresses = ["18.7.22.69", "131.111.8.42", "130.149.7.201", "2001:da8::1", "10.1.2.3", "::1"];
    let (countries, detail) = reloaded.reload(&addresses);
    assert_eq!(countries, codes(&["US", "GB", "DE", "CN", "", ""]), "{detail}");

    let reader = reloaded.file.countries();
    let addresses: Vec<IpAddr> =
        (0..10_000_u32).map(|number| Ipv4Addr::from(number.wrapping_mul(2_654_435_761)).into()).collect();
    let known = addresses.iter().filter(|address| reader.find(**address).is_some()).count();
    // Reserved networks have no country: about one address in eight.
    assert!(known > 8_000, "{known}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_country_file_is_used_without_a_restart() {
    let (isolated, spool, scratch) = (isolated().await, SpoolDir::new(), Scratch::new("countries").unwrap());
    let path = scratch.path().join("country.mmdb");
    fs::write(&path, germany()).unwrap();
    publish(&isolated, &[live(&link("s", "https://a.example/"))]);
    let mut config = crate::edge::config(&isolated.kafka_brokers, &isolated.topic_prefix, spool.path());
    config.country_file = Some(path.clone());
    let edge = Edge::start_as(config).await;
    edge.is_ready().await;
    let detail = async || {
        let (_, report) = edge.readyz().await;
        report["checks"]["countries"]["detail"].as_str().unwrap().to_owned()
    };
    let click = async || {
        let headers = [("user-agent", BROWSER.as_bytes()), ("x-forwarded-for", &b"192.0.2.7"[..])];
        assert_eq!(edge.request(Method::GET, "/s", &headers).await.status(), 302);
    };
    click().await;

    fs::write(&path, b"half a file").unwrap();
    eventually("the damaged file is rejected", async || {
        let detail = detail().await;
        if detail.contains("stays in use") { Ok(()) } else { Err(detail) }
    })
    .await;
    click().await;

    fs::write(&path, file(&[("192.0.2.0", 24, Entry::Flat("AT"))])).unwrap();
    eventually("the new file is used", async || {
        let detail = detail().await;
        if detail.contains("stays in use") { Err(detail) } else { Ok(()) }
    })
    .await;
    click().await;

    let mut seen: Vec<_> = clicks(&isolated, 3).await.into_iter().map(|(_, click)| click).collect();
    seen.sort_by_key(|click| click.occurred_at);
    let countries: Vec<_> = seen.into_iter().map(|click| click.country).collect();
    assert_eq!(countries, codes(&["DE", "DE", "AT"]));
    edge.stop().await;
}

//! Visitors' addresses never leave the edge's memory. The test searches everything that is stored or sent for them.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use aho_corasick::AhoCorasick;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use chrono::Utc;
use devstack::install::Cache;
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};
use tests::deployment::{BROWSER, Deployment, click_id};
use tests::engines::{Isolated, clickhouse, http_client, isolated};
use tests::log::for_each_record;
use tests::receiver::{Answer, Receiver};
use tests::{eventually, metrics_page};

/// Addresses of documentation networks with a distinctive pattern. No country is found for them.
const ADDRESSES: [&str; 5] = [
    "203.0.113.217",
    "198.51.100.238",
    "2001:db8:5eed:c0de:fa11:ba5e:1dea:f00d",
    "192.0.2.251",
    "2001:db8:feed:dead:d00d:ab1e:cafe:b0b5",
];

/// The patterns to search for.
struct Needles {
    /// In lower and upper case.
    texts: AhoCorasick,
    /// Case-sensitive texts, and bytes.
    exact: AhoCorasick,
}

impl Needles {
    /// Creates every form in which an address could be stored: whole, or as the network that identifies a visitor.
    fn new() -> Self {
        let (mut texts, mut exact) = (BTreeSet::new(), Vec::new());
        for text in ADDRESSES {
            let address: IpAddr = text.parse().unwrap();
            let octets = match address {
                IpAddr::V4(address) => {
                    texts.insert(u32::from(address).to_string());
                    address.octets().to_vec()
                }
                IpAddr::V6(address) => {
                    let groups = address.segments().map(|group| format!("{group:x}"));
                    texts.insert(groups[..4].join(":"));
                    texts.insert(hex(&address.octets()[..8]));
                    exact.push(address.octets()[..8].to_vec());
                    address.octets().to_vec()
                }
            };
            texts.extend([text.to_owned(), hex(&octets)]);
            exact.extend([STANDARD_NO_PAD.encode(&octets), URL_SAFE_NO_PAD.encode(&octets)].map(Vec::from));
            exact.extend([STANDARD_NO_PAD.encode(text), URL_SAFE_NO_PAD.encode(text)].map(Vec::from));
            exact.push(octets);
        }
        let texts = AhoCorasick::builder().ascii_case_insensitive(true).build(texts).unwrap();
        Self { texts, exact: AhoCorasick::new(exact).unwrap() }
    }

    /// Returns a pattern that is found in some bytes.
    fn find(&self, bytes: &[u8]) -> Option<String> {
        let found = self.texts.find(bytes).or_else(|| self.exact.find(bytes))?;
        Some(String::from_utf8_lossy(&bytes[found.range()]).into_owned())
    }

    fn are_not_in(&self, place: &str, bytes: &[u8]) {
        let found = self.find(bytes);
        assert!(found.is_none(), "{place} contains {found:?}");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_address_of_a_visitor_is_stored_logged_or_sent() {
    let needles = Needles::new();
    let data = Cache::shared().data().await.unwrap().display().to_string();
    // With debug logs, and with lookups of countries.
    let variables = [("RUST_LOG", "debug"), ("HOPLINE_DATA_DIR", &data), ("HOPLINE_SNAPSHOT_SECONDS", "1")];
    let deployment = Deployment::start_on(isolated().await, &variables).await;
    let receiver = Receiver::start(|_, _| Answer::Status(200)).await;
    deployment.create_endpoint(&receiver.url("/in"), &["click.created", "link.created"]).await;
    let link = deployment.create_link().await;
    let (id, slug) = (link["id"].as_str().unwrap(), link["slug"].as_str().unwrap());
    deployment.edge_knows(slug).await;

    let mut click_ids = Vec::new();
    // A click stays in its segment for at least 2 s. If this machine stalls for longer, the search repeats with others.
    eventually("the search finds clicks in the spool", async || {
        let clicked = redirected(&deployment, slug, &needles).await;
        let spooled = files(&deployment.spool());
        for (name, bytes) in &spooled {
            needles.are_not_in(name, bytes);
        }
        let are_found = clicked.iter().all(|id| spooled.iter().any(|(_, bytes)| is_in(id, bytes)));
        click_ids.extend(clicked);
        if are_found { Ok(()) } else { Err(click_ids.len()) }
    })
    .await;
    click_ids.extend(sent_by_another_edge(&deployment, slug, &needles).await);
    // A request to the API from a visitor's browser, with the visitor's address.
    assert_eq!(convert(&deployment, &click_ids[0]).await, 201);

    eventually("every click is counted", async || {
        let total = deployment.show_link(id).await["total_clicks"].clone();
        if total == json!(click_ids.len()) { Ok(()) } else { Err(total) }
    })
    .await;
    eventually("every click is delivered", async || {
        let bodies = receiver.requests();
        let missing = click_ids.iter().filter(|id| !bodies.iter().any(|sent| is_in(id, &sent.body))).count();
        if missing == 0 { Ok(()) } else { Err(missing) }
    })
    .await;
    eventually("the snapshot is written", async || {
        match fs::read(deployment.spool().join("links.snapshot")) {
            Ok(bytes) if is_in(slug, &bytes) => Ok(()),
            other => Err(other.map(|bytes| bytes.len())),
        }
    })
    .await;

    for request in receiver.requests() {
        needles.are_not_in("a webhook", &request.body);
        needles.are_not_in("a webhook's headers", format!("{:?}", request.headers).as_bytes());
    }
    let (_, shown) = deployment.send(Method::GET, &format!("/api/links/{id}/clicks"), None).await;
    needles.are_not_in("the list of clicks", shown.to_string().as_bytes());
    in_topics(&deployment.engines, &needles, &click_ids);
    in_clickhouse(&deployment.engines, &needles, &click_ids).await;
    in_postgres(&deployment.engines, &needles, &click_ids).await;
    for server in deployment.services() {
        let name = server.name();
        needles.are_not_in(&format!("{name}'s metrics"), metrics_page(server.url()).await.as_bytes());
        let log = deployment.log(name);
        assert!(log.contains("DEBUG"), "{name} logs at level debug");
        needles.are_not_in(&format!("{name}'s log"), log.as_bytes());
    }
    deployment.ingest.stop().await;
    for (name, bytes) in files(&deployment.spool()) {
        needles.are_not_in(&name, &bytes);
    }
}

/// Clicks with every header that contains a visitor's address, and returns the click ids.
async fn redirected(deployment: &Deployment, slug: &str, needles: &Needles) -> Vec<String> {
    let [v4, other_v4, v6, ..] = ADDRESSES;
    let headers = [
        ("x-forwarded-for", v4.to_owned()),
        ("x-forwarded-for", format!("{other_v4}, {v4}")),
        ("x-forwarded-for", v6.to_owned()),
        ("x-forwarded-for", format!("::ffff:{v4}")),
        ("forwarded", format!("for={v4}")),
        ("forwarded", format!("for=\"[{v6}]:4711\";proto=https, for={other_v4}")),
        // Not a trusted proxy, so the header is neither used nor stored.
        ("x-real-ip", v4.to_owned()),
        ("cf-connecting-ip", v6.to_owned()),
    ];
    let mut click_ids = Vec::new();
    for (name, value) in headers {
        let url = format!("{}/{slug}", deployment.edge_url());
        let request = http_client().get(url).header("user-agent", BROWSER).header(name, value);
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 302);
        needles.are_not_in("a redirect", format!("{:?}", answer.headers()).as_bytes());
        click_ids.push(click_id(&answer));
    }
    for path in ["no-such-slug", "", "%ff%fe"] {
        let url = format!("{}/{path}", deployment.edge_url());
        let answer = http_client().get(url).header("x-forwarded-for", v4).send().await.unwrap();
        needles.are_not_in("a page", &answer.bytes().await.unwrap());
    }
    click_ids
}

/// Sends valid and invalid clicks as another edge does, and returns the click ids.
async fn sent_by_another_edge(deployment: &Deployment, slug: &str, needles: &Needles) -> Vec<String> {
    let token = deployment.admin(&["create-edge-token"]).await;
    let token = token["edge_token"].as_str().unwrap();
    let [.., v6, v4, other_v6] = ADDRESSES;
    let now = Utc::now();
    let item = |event: &str, ip: String| {
        let at = now.to_rfc3339();
        json!({ "slug": slug, "occurred_at": at, "ip": ip, "user_agent": BROWSER, "event_id": event })
    };
    let mut unknown_field = item("e-5", v4.to_owned());
    unknown_field["client_ip"] = json!(v4);
    let items = json!([
        item("e-1", v4.to_owned()),
        item("e-2", v6.to_owned()),
        item("e-3", other_v6.to_owned()),
        item("e-4", format!("{v4}.7")),
        unknown_field,
        item("e-6", format!("[{other_v6}]")),
    ]);
    let url = format!("{}/v1/clicks", deployment.edge_url());
    let send = async |token: &str, body: String| {
        let request = http_client().post(&url).bearer_auth(token).header("x-forwarded-for", v4);
        let answer = request.header("content-type", "application/json").body(body).send().await.unwrap();
        let (status, body) = (answer.status().as_u16(), answer.text().await.unwrap());
        needles.are_not_in("an answer to another edge", body.as_bytes());
        (status, body)
    };
    for body in [format!("[{{\"ip\": \"{v4}\""), format!("\"{v6}\""), format!("{{\"{v4}\": 1}}")] {
        send(token, body).await;
    }
    assert_eq!(send("no-token", items.to_string()).await.0, 401);
    let body = eventually("the items are accepted", async || match send(token, items.to_string()).await {
        (202, body) => Ok(body),
        other => Err(other),
    })
    .await;
    let body: Value = serde_json::from_str(&body).unwrap();
    let results = body["results"].as_array().unwrap();
    let statuses: Vec<&str> = results.iter().map(|result| result["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["accepted", "accepted", "accepted", "rejected", "rejected", "rejected"], "{body}");
    let accepted = results.iter().filter_map(|result| result["click_id"].as_str());
    accepted.map(str::to_owned).collect()
}

/// Registers a conversion as a visitor's browser does.
async fn convert(deployment: &Deployment, click_id: &str) -> u16 {
    let request = http_client().post(format!("{}/api/conversions", deployment.api_url()));
    let request = request.json(&json!({ "click_id": click_id }));
    request.header("x-forwarded-for", ADDRESSES[0]).send().await.unwrap().status().as_u16()
}

fn in_topics(engines: &Isolated, needles: &Needles, click_ids: &[String]) {
    let mut seen = BTreeSet::new();
    for topic in schemas::topic::ALL {
        for_each_record(engines, topic, |record| {
            needles.are_not_in(topic.name, record.key.as_bytes());
            needles.are_not_in(topic.name, &record.value);
            for (name, value) in &record.headers {
                needles.are_not_in(topic.name, name.as_bytes());
                needles.are_not_in(topic.name, value);
            }
            seen.insert((topic.name, record.key));
        });
    }
    assert!(click_ids.iter().all(|id| seen.contains(&(schemas::topic::CLICKS.name, id.clone()))));
}

async fn in_clickhouse(engines: &Isolated, needles: &Needles, click_ids: &[String]) {
    let mut everything = String::new();
    let tables =
        engines.clickhouse("SELECT name FROM system.tables WHERE database = currentDatabase()").await;
    for url in engines.every_clickhouse() {
        for table in tables.lines() {
            let all = format!("SELECT * FROM \"{table}\" FORMAT JSONEachRow");
            let rows = clickhouse(&url, &all, Vec::new()).await.unwrap();
            needles.are_not_in(&format!("ClickHouse's {table}"), rows.as_bytes());
            everything.push_str(&rows);
        }
    }
    assert!(click_ids.iter().all(|id| everything.contains(id.as_str())));
}

async fn in_postgres(engines: &Isolated, needles: &Needles, click_ids: &[String]) {
    let mut connection = PgConnection::connect(&engines.database_url).await.unwrap();
    let tables: Vec<String> = sqlx::query_scalar(
        "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables
         WHERE schemaname NOT IN ('pg_catalog', 'information_schema')",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    let mut everything = String::new();
    for table in tables {
        // Rows as text contain bytes in hex.
        let statement = AssertSqlSafe(format!("SELECT t::text FROM {table} t"));
        let rows = sqlx::query(statement).fetch_all(&mut connection).await.unwrap();
        for row in rows {
            let text: String = row.get(0);
            needles.are_not_in(&format!("Postgres' {table}"), text.as_bytes());
            everything.push_str(&text);
            // A delivery's body and a key's hash are bytes.
            for bytes in text.split("\\x").skip(1).map(unhex) {
                needles.are_not_in(&format!("bytes of Postgres' {table}"), &bytes);
                everything.push_str(&String::from_utf8_lossy(&bytes));
            }
        }
    }
    assert!(everything.contains(&click_ids[0]), "the conversion or its delivery is stored");
}

/// Returns the bytes of the hex digits at the start of a text.
fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        text.chars().map_while(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Returns the files of a folder.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    // A file may be renamed or removed while it is read.
    paths.filter_map(|path| Some((path.display().to_string(), fs::read(&path).ok()?))).collect()
}

fn is_in(text: &str, bytes: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn the_search_finds_an_address_in_each_of_its_forms() {
    let needles = Needles::new();
    for form in [
        &b"from 203.0.113.217, just now"[..],
        b"3405803993",
        b"CB0071D9",
        b"x\xcb\x00\x71\xd9x",
        b"ywBx2Q",
        b"2001:DB8:5EED:C0DE::",
        b"20010db85eedc0de",
    ] {
        assert!(needles.find(form).is_some(), "{}", String::from_utf8_lossy(form));
    }
    assert_eq!(needles.find(b"203.0.113.21"), None);
}

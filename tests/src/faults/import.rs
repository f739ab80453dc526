//! A large import of links during which the API is killed.

use std::fmt;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use devstack::process::Memory;
use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};

use super::progress;
use crate::deployment::Deployment;
use crate::engines::{Isolated, http_client};
use crate::eventually_within;

/// How long half of an import may take.
const DONE: Duration = Duration::from_secs(3_600);

/// One of this many rows is rejected. A large file has more rejected rows than its report lists; all are in a separate
/// file.
const REFUSED_EACH: u32 = 100;

/// Rejected rows that a report lists.
const LISTED: usize = 200;

/// The size of the file.
#[derive(Debug, Clone, Copy)]
pub struct ImportKill {
    /// Rows of the file.
    pub rows: u32,
}

/// The result of an import.
#[derive(Debug)]
pub struct Imported {
    /// Rows of the file.
    pub rows: u32,
    /// Rows that were processed when the API was killed.
    pub killed_at: i64,
    /// Links that exist in the end.
    pub links: i64,
    /// The time from the first byte to the last processed row, including the kill and the start.
    pub took: Duration,
    /// Resident memory of the API before the import, and its maximum before and after the kill, in bytes.
    pub memory: [u64; 3],
}

impl fmt::Display for Imported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, killed_at, links, took, memory } = self;
        let [idle, before, after] = memory.map(|bytes| bytes >> 20);
        write!(
            f,
            "{rows} rows, the API killed after {killed_at}: {links} links in {took:.1?}; the API had {idle} MiB \
             before, at most {before} MiB until the kill and {after} MiB after it"
        )
    }
}

/// A member who uses the dashboard.
pub(super) struct Member {
    client: Client,
    cookie: String,
    imports: String,
}

impl Member {
    /// Creates the first owner.
    pub(super) async fn new(deployment: &Deployment) -> Self {
        let client = http_client();
        let token = deployment.admin(&["setup-token"]).await["setup_token"].clone();
        let owner = json!({
            "name": "Ada", "email": "ada@example.com", "password": "correct horse battery", "token": token,
        });
        let set_up = client.post(format!("{}/app/api/setup", deployment.api_url()));
        let answer = set_up.header("x-requested-with", "hopline").json(&owner).send().await.unwrap();
        let cookie = answer.headers()["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
        let session: Value = answer.json().await.unwrap();
        let workspace = session["workspaces"][0]["id"].as_str().unwrap();
        let imports = format!("{}/app/api/workspaces/{workspace}/links/import", deployment.api_url());
        Self { client, cookie, imports }
    }

    fn request(&self, method: Method, below: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{}{below}", self.imports));
        request.header("cookie", &self.cookie).header("x-requested-with", "hopline")
    }

    /// Sends the file with the same idempotency key each time.
    pub(super) fn send(&self, file: &str) -> RequestBuilder {
        let request = self.request(Method::POST, "").header("idempotency-key", "the-one-import");
        request.header("content-type", "text/csv").body(file.to_owned())
    }

    async fn report(&self, id: &str) -> reqwest::Result<Value> {
        self.request(Method::GET, &format!("/{id}")).send().await?.error_for_status()?.json().await
    }

    /// Waits until an import is done, and returns its report.
    pub(super) async fn done(&self, id: &str) -> Value {
        let mut reported = Instant::now();
        eventually_within("the import is done", DONE, async || {
            let report = self.report(id).await.map_err(|error| error.to_string())?;
            if reported.elapsed() > Duration::from_secs(10) {
                progress(&format!("{} rows are done", report["rows"]));
                reported = Instant::now();
            }
            if report["done"] == true { Ok(report) } else { Err(report["rows"].to_string()) }
        })
        .await
    }
}

/// Imports a file, kills the API at half of it, sends the file again with the same key, and waits for the rest.
///
/// # Panics
/// When the API does not become ready again, or a row is lost, doubled, or missing in the report.
pub async fn import_kill(engines: Isolated, plan: ImportKill) -> Imported {
    let deployment = Deployment::start_on(engines, &[]).await;
    let member = Member::new(&deployment).await;
    let file = file(plan.rows);
    // As in a spreadsheet, the header is line 1.
    let refused: Vec<i64> =
        (1..=plan.rows).filter(|row| is_refused(*row)).map(|row| i64::from(row) + 1).collect();
    let rows = i64::from(plan.rows);
    let idle = memory(&deployment).resident;
    progress(&format!("a file of {} MB", file.len() / 1_000_000));
    let began = Instant::now();

    // The answer is lost if the kill comes first.
    let first = tokio::spawn(member.send(&file).send());
    let mut reported = Instant::now();
    let mut postgres = deployment.engines.postgres().await;
    let killed_at = eventually_within("half of the rows are done", DONE, async || {
        let done: i64 =
            sqlx::query_scalar("SELECT coalesce(sum(created + failed), 0)::bigint FROM link_imports")
                .fetch_one(&mut postgres)
                .await
                .unwrap();
        if reported.elapsed() > Duration::from_secs(10) {
            progress(&format!("{done} rows are done"));
            reported = Instant::now();
        }
        if done >= rows / 2 { Ok(done) } else { Err(done) }
    })
    .await;
    let before = memory(&deployment).peak;
    deployment.api.kill().await;
    // The kill may have cut off the answer.
    let _ = first.await.unwrap();
    progress(&format!("killed the API after {killed_at} rows"));
    deployment.api.start().await.unwrap();

    let again: Value = member.send(&file).send().await.unwrap().json().await.unwrap();
    let id = again["import_id"].as_str().unwrap_or_else(|| panic!("{again}")).to_owned();
    let report = member.done(&id).await;
    let took = began.elapsed();
    let after = memory(&deployment).peak;

    let failed = refused.len() as i64;
    is_complete(&report, plan.rows);
    let listed: Vec<i64> =
        report["results"].as_array().unwrap().iter().map(|result| result["row"].as_i64().unwrap()).collect();
    assert_eq!(listed, refused[..refused.len().min(LISTED)], "{report}");
    let file =
        member.request(Method::GET, &format!("/{id}/refused")).send().await.unwrap().text().await.unwrap();
    let in_file: Vec<String> =
        file.lines().skip(1).map(|line| line.split(',').next().unwrap().to_owned()).collect();
    assert_eq!(in_file, refused.iter().map(i64::to_string).collect::<Vec<_>>(), "the file of rejected rows");
    let (imports, links): (i64, i64) = sqlx::query_as(
        "SELECT (SELECT count(*) FROM link_imports), (SELECT count(DISTINCT slug) FROM links)",
    )
    .fetch_one(&mut postgres)
    .await
    .unwrap();
    assert_eq!(
        (imports, links),
        (1, rows - failed),
        "the repeated request continues the import, and each row is one link"
    );
    Imported { rows: plan.rows, killed_at, links, took, memory: [idle, before, after] }
}

/// Asserts that a report has this number of rows, each once.
pub(super) fn is_complete(report: &Value, rows: u32) {
    let failed = (1..=rows).filter(|row| is_refused(*row)).count() as u32;
    assert_eq!(
        ["rows", "created", "failed"].map(|field| report[field].as_u64().unwrap()),
        [rows, rows - failed, failed].map(u64::from),
        "{report}"
    );
}

/// Returns links with all columns, and some invalid rows.
pub(super) fn file(rows: u32) -> String {
    let mut file = String::from("name,destination,slug,tags,external_id\r\n");
    for row in 1..=rows {
        let host = if is_refused(row) { "nowhere" } else { "https://example.com" };
        // Writing to a String cannot fail.
        let _ = write!(
            file,
            "Link {row},{host}/page/{row}?utm_source=import,import-{row},\"tag {}, all\",{row}\r\n",
            row % 50
        );
    }
    file
}

fn is_refused(row: u32) -> bool {
    row % REFUSED_EACH == REFUSED_EACH / 2
}

fn memory(deployment: &Deployment) -> Memory {
    Memory::of(deployment.api.pid().unwrap()).unwrap()
}

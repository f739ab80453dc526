//! Import and export of links as CSV.

use chrono::NaiveDate;
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::Executor as _;
use tests::engines::Isolated;

use crate::dashboard::Browser;
use crate::server::{Answer, Server, answer, config, text};
use crate::stats_model::within_a_day;

/// Sends a file and waits until its import is done.
pub(crate) async fn import(browser: &Browser, dry_run: bool, file: impl Into<Vec<u8>>) -> Answer {
    let sent = send(browser, &format!("?dry_run={dry_run}"), file).await;
    if sent.status != 200 {
        return sent;
    }
    done(browser, sent).await
}

pub(crate) async fn send(browser: &Browser, query: &str, file: impl Into<Vec<u8>>) -> Answer {
    let path = browser.path(&format!("/links/import{query}"));
    answer(browser.request(Method::POST, &path).header("content-type", "text/csv").body(file.into())).await
}

pub(crate) async fn done(browser: &Browser, report: Answer) -> Answer {
    let path = format!("/links/import/{}", text(&report.body["import_id"]));
    tests::eventually("the import is done", async || {
        let now = browser.get(&path).await;
        if now.body["done"] == true { Ok(now) } else { Err(now.body) }
    })
    .await
}

pub(crate) async fn count(server: &Server) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM links")
        .fetch_one(&mut server.engines.postgres().await)
        .await
        .unwrap()
}

pub(crate) fn numbers(report: &Value) -> [i64; 3] {
    ["rows", "created", "failed"].map(|name| report[name].as_i64().unwrap())
}

#[tokio::test]
async fn a_dry_run_predicts_the_import() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    owner.post("/links", json!({"name": "a", "destination": "https://example.com", "slug": "taken"})).await;
    let mut file = String::from("destination,name,slug,tags,expires_at\r\n");
    file += "https://example.com/a,First,first,\"x, y\",2030-01-01T00:00:00Z\r\n";
    file += "example.com/b,,,,\r\n";
    file += "nowhere,Bad,bad,,\r\n\r\n";
    file += "https://example.com/c,Taken,taken,,\r\n";
    // Enough rows to put the second "first" into another batch.
    for number in 0..600 {
        file += &format!("https://example.com/{number},n{number},row-{number},,\r\n");
    }
    file += "https://example.com/d,Twice,first,,\r\n";
    let refused = json!([
        {"row": 4, "status": 400, "message": "Destination must be an absolute URL, such as https://example.com/page.",
         "content": "nowhere,Bad,bad,,"},
        {"row": 6, "status": 409, "message": "The slug \"taken\" is already taken.",
         "content": "https://example.com/c,Taken,taken,,"},
        {"row": 607, "status": 409, "message": "The slug \"first\" is already taken.",
         "content": "https://example.com/d,Twice,first,,"},
    ]);

    let dry = import(&owner, true, file.clone()).await.body;
    assert_eq!((numbers(&dry), &dry["results"]), ([605, 602, 3], &refused), "{dry}");
    assert_eq!(count(&server).await, 1, "nothing has changed");
    let real = import(&owner, false, file).await.body;
    assert_eq!((numbers(&real), &real["results"]), ([605, 602, 3], &refused), "{real}");
    assert_eq!(count(&server).await, 603);
    let first = owner.get("/links?q=First").await.body["links"][0].clone();
    let first = owner.get(&format!("/links/{}", text(&first["id"]))).await.body;
    assert_eq!(
        (&first["tags"], &first["expires_at"]),
        (&json!(["x", "y"]), &json!("2030-01-01T00:00:00.000Z"))
    );
    let unnamed = owner.get("/links?q=https://example.com/b").await.body["links"][0].clone();
    assert_eq!(unnamed["name"], "https://example.com/b");
    let completed = owner.get(&format!("/links/{}", text(&unnamed["id"]))).await.body;
    assert_eq!(completed["destination"], "https://example.com/b");
    let kept: i64 = sqlx::query_scalar("SELECT count(*) FROM link_import_pieces")
        .fetch_one(&mut server.engines.postgres().await)
        .await
        .unwrap();
    assert_eq!(kept, 0, "the file is removed after the import");
}

#[tokio::test]
async fn files_of_every_spreadsheet_are_imported() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let text_of =
        |slug: &str| format!("\u{feff}name;destination;slug\r\nZürich 🚲;https://example.com;{slug}\r\n");
    let utf16 = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    for file in [text_of("utf-8").into_bytes(), utf16(&text_of("utf-16"))] {
        let report = import(&owner, false, file).await.body;
        assert_eq!(numbers(&report), [1, 1, 0], "{report}");
    }
    let found = owner.get("/links?q=Zürich%20🚲").await.body;
    assert_eq!(found["links"].as_array().unwrap().len(), 2);
    let latin = b"name,destination\nZ\xfcrich,https://example.com\nb,https://example.com\n".to_vec();
    let report = import(&owner, false, latin).await.body;
    assert_eq!(numbers(&report), [2, 1, 1], "{report}");
    assert!(report["results"][0]["message"].as_str().unwrap().contains("UTF-8"), "{report}");

    for bad in [&b""[..], b"name,slug\na,b\n", b"\xff\xfe\x00\xd8", b"\x89PNG\r\n\x1a\n"] {
        let refused = import(&owner, true, bad).await;
        assert_eq!((refused.status.as_u16(), &refused.body["details"][0]["field"]), (400, &json!("header")));
    }
    let as_json = owner.post("/links/import", json!({})).await;
    assert_eq!((as_json.status.as_u16(), &as_json.body["code"]), (415, &json!("UNSUPPORTED_MEDIA_TYPE")));
    let unknown = send(&owner, "?import_id=imp_00000000000000000000000000", "destination\n").await;
    assert_eq!(unknown.status, 404);
    let other = owner.of_other_account(&server, "eve@example.com", "free").await;
    let report = import(&owner, true, "destination\nhttps://example.com\n").await.body;
    let path = format!("/links/import/{}", text(&report["import_id"]));
    assert_eq!((owner.get(&path).await.status.as_u16(), other.get(&path).await.status.as_u16()), (200, 404));
    let id = text(&report["import_id"]);
    let turned = send(&owner, &format!("?import_id={id}"), "destination\n").await;
    assert_eq!(turned.status, 404, "a dry run does not become an import");
    let again = send(&other, &format!("?dry_run=true&import_id={id}"), "destination\n").await;
    assert_eq!(again.status, 404);
    let again = send(&owner, &format!("?dry_run=true&import_id={id}"), "destination\n").await;
    assert_eq!(again.body, report);
}

#[tokio::test]
async fn control_characters_reject_a_row_only() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let header = "name,destination,slug,tags,external_id,is_active,expires_at,redirect_status,forward_query,\
                  append_click_id";
    let columns = header.split(',').count();
    // NUL, which Postgres does not store; another control character; a byte of Latin-1; half a UTF-8 character.
    let bad = [&b"a\0b"[..], b"a\x07b", b"caf\xe9", b"a\xf0\x9f\x9a"];
    let mut file = header.as_bytes().to_vec();
    for cell in bad {
        for place in 0..columns {
            file.push(b'\n');
            for column in 0..columns {
                let plain: &[u8] = if column == 1 { b"https://example.com" } else { b"" };
                file.extend_from_slice(if column == place { cell } else { plain });
                file.push(b',');
            }
            file.pop();
        }
    }
    file.extend_from_slice(b"\nlast,https://example.com,last\n");
    for dry_run in [true, false] {
        let report = import(&owner, dry_run, file.clone()).await.body;
        let refused = (bad.len() * columns) as i64;
        assert_eq!(numbers(&report), [refused + 1, 1, refused], "{report}");
        for refusal in report["results"].as_array().unwrap() {
            assert_eq!(refusal["status"], 400, "{refusal}");
        }
    }
    assert_eq!(count(&server).await, 1);
    // UTF-16 without a byte order mark cannot be recognized.
    let unmarked: Vec<u8> =
        "destination\nhttps://example.com\n".encode_utf16().flat_map(u16::to_be_bytes).collect();
    assert_eq!(import(&owner, true, unmarked).await.status, 400);
    let halved: Vec<u8> =
        [0xfeff, 0x64, 0xd83d].into_iter().flat_map(u16::to_be_bytes).chain([0x00]).collect();
    assert_eq!(import(&owner, true, halved).await.status, 400);
}

#[tokio::test]
async fn an_import_stops_at_the_plans_cap() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let free = owner.of_other_account(&server, "eve@example.com", "free").await;
    let mut file = String::from("destination\n");
    (0..450).for_each(|number| file += &format!("https://example.com/{number}\n"));
    for dry_run in [true, false] {
        let report = import(&free, dry_run, file.clone()).await.body;
        assert_eq!(numbers(&report), [450, 25, 425], "dry run: {dry_run}");
        assert_eq!(report["results"].as_array().unwrap().len(), 200, "the report lists the first 200");
        let refused = free.path(&format!("/links/import/{}/refused", text(&report["import_id"])));
        let refused = free.bare(Method::GET, &refused).send().await.unwrap();
        assert_eq!(refused.headers()["content-disposition"], r#"attachment; filename="refused.csv""#);
        let refused = refused.text().await.unwrap();
        let lines: Vec<&str> = refused.lines().collect();
        assert_eq!(
            (lines.len(), lines[0]),
            (426, "row,status,message,content"),
            "the file lists all of them"
        );
        assert!(lines[1].starts_with("27,403,") && lines[425].starts_with("451,403,"), "{refused}");
        assert!(lines[1].ends_with(",https://example.com/25"), "{}", lines[1]);
        assert_eq!(
            (&report["results"][0]["row"], &report["results"][0]["status"]),
            (&json!(27), &json!(403))
        );
    }
    assert_eq!(count(&server).await, 25);
}

#[tokio::test]
async fn an_import_stops_when_10_000_rows_were_rejected() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let mut file = String::from("destination\nhttps://example.com/first\n");
    (0..10_700).for_each(|_| file += "nowhere\n");
    file += "https://example.com/last\n";
    let report = import(&owner, false, file).await.body;
    assert_eq!(numbers(&report), [10_001, 1, 10_000]);
    let path = owner.path(&format!("/links/import/{}/refused", text(&report["import_id"])));
    let refused = owner.bare(Method::GET, &path).send().await.unwrap().text().await.unwrap();
    assert_eq!(refused.lines().count(), 10_001);
    let last = refused.lines().last().unwrap();
    assert!(last.contains("The import stopped here, because 10,000 rows were rejected."), "{last}");
    assert_eq!(count(&server).await, 1);
}

#[tokio::test]
async fn imported_bytes_are_limited_per_day() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let free = owner.of_other_account(&server, "eve@example.com", "free").await;
    let file = "destination\nhttps://example.com\n";
    assert_eq!(import(&free, true, file).await.status, 200);
    let used = async |bytes: i64, day: NaiveDate| {
        sqlx::query("UPDATE import_bytes SET bytes = $1, day = $2 WHERE bytes > 0")
            .bind(bytes)
            .bind(day)
            .execute(&mut server.engines.postgres().await)
            .await
            .unwrap();
    };
    let (day, refused) = within_a_day(async |day| {
        used(1 << 30, day).await;
        import(&free, true, file).await
    })
    .await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.body["code"], "RATE_LIMITED");
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!(import(&owner, true, file).await.status, 200, "another account");
    used(1 << 30, day.pred_opt().unwrap()).await;
    assert_eq!(import(&free, true, file).await.status, 200, "another day");
}

/// Delays three of ten rows of an import by some milliseconds, so that an import of some thousand rows lasts longer
/// than the request that sends it, on every machine.
pub(crate) async fn slow_down_imports(engines: &Isolated) {
    let slow = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql
            AS $$ BEGIN PERFORM pg_sleep(0.002); RETURN NEW; END $$;
        CREATE TRIGGER slow BEFORE INSERT ON links FOR EACH ROW WHEN (NEW.slug ~ '[036]$') EXECUTE FUNCTION slow()";
    engines.postgres().await.execute(slow).await.unwrap();
}

/// Begins an import of rows whose slugs begin with `slug`, and returns its report before it is done.
async fn begin_import(browser: &Browser, rows: i64, slug: &str) -> Value {
    let mut file = String::from("destination,slug\n");
    (0..rows).for_each(|number| file += &format!("https://example.com/{number},{slug}-{number}\n"));
    let report = send(browser, "?dry_run=false", file).await.body;
    assert_eq!(report["done"], false, "{report}");
    report
}

#[tokio::test]
async fn an_import_resumes_after_its_process_ended() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    slow_down_imports(&server.engines).await;
    const ROWS: i64 = 6_000;
    let report = begin_import(&owner, ROWS, "row").await;
    tests::eventually("some rows are done", async || {
        let rows = count(&server).await;
        if rows > 0 { Ok(()) } else { Err(rows) }
    })
    .await;
    let workspace = server.workspace.clone();
    let engines = server.stop().await;
    let so_far: i64 = sqlx::query_scalar("SELECT created FROM link_imports")
        .fetch_one(&mut engines.postgres().await)
        .await
        .unwrap();
    assert!(so_far > 0 && so_far < ROWS, "{so_far}");
    // Two instances compete for the rest of the import.
    let config = config(&engines);
    let _other = Server::serve(engines.clone(), config.clone()).await;
    let mut server = Server::serve(engines, config).await;
    server.workspace = workspace;
    let mut owner = Browser::new(&server);
    assert_eq!(owner.sign_in("ada@example.com", crate::dashboard::PASSWORD).await.status, 200);
    let path = format!("/links/import/{}", text(&report["import_id"]));
    let report = done(&owner, owner.get(&path).await).await.body;
    assert_eq!(numbers(&report), [ROWS, ROWS, 0], "each row once: {report}");
    assert_eq!(count(&server).await, ROWS);
}

#[tokio::test]
async fn an_import_stops_once_its_member_may_not_change_links() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    slow_down_imports(&server.engines).await;
    const ROWS: i64 = 20_000;
    for name in ["demoted", "removed"] {
        let (member, id) = owner.with_member(&server, &format!("{name}@example.com"), "editor").await;
        let report = begin_import(&member, ROWS, name).await;
        let path = format!("/app/api/members/{id}");
        let changed = match name {
            "demoted" => owner.send(Method::PATCH, &path, Some(json!({"role": "viewer"}))).await,
            _ => owner.send(Method::DELETE, &path, None).await,
        };
        assert!(changed.status.is_success(), "{}", changed.body);
        let links = count(&server).await;
        let path = format!("/links/import/{}", text(&report["import_id"]));
        let report = done(&owner, owner.get(&path).await).await.body;
        let [_, created, failed] = numbers(&report);
        assert!(created < ROWS && failed == 1, "{report}");
        let last = &report["results"][0];
        assert_eq!((&last["status"], &last["row"]), (&json!(403), &json!(created + 2)), "{report}");
        assert!(text(&last["message"]).contains("may no longer change links"), "{report}");
        assert_eq!(count(&server).await, links, "nothing is imported after the change");
    }
}

#[tokio::test]
async fn an_export_has_no_formula_and_is_imported_unchanged() {
    const AWKWARD: &[&str] = &[
        "=HYPERLINK(\"x\",\"y\")",
        "'=1+1",
        "''=1",
        "+1",
        "-1",
        "@a",
        "＝1",
        "a,b",
        "\"",
        "\"a\",\"b\"",
        "a\"b",
        "'tis",
        "Zürich 🚲",
        "a;b",
        "中,文",
        "a\u{3000}b",
        "=",
        "'",
    ];
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let mut links = Vec::new();
    for number in 0..1_001 {
        let awkward = AWKWARD[number % AWKWARD.len()];
        let other = AWKWARD[(number / AWKWARD.len()) % AWKWARD.len()];
        let tags = if awkward == other {
            json!([awkward])
        } else {
            json!([awkward, other, format!("{other}, {awkward}")])
        };
        links.push(json!({
            "name": awkward, "destination": format!("https://example.com/{number}?a=1,2"), "tags": tags,
            "slug": format!("{}slug-{number}", ["", "-", "_"][number % 3]),
            "is_active": number % 2 == 0, "external_id": format!(" {other} {number} "),
            "expires_at": (number % 5 == 0).then_some("2030-01-01T00:00:00.123Z"),
            "redirect_status": ([301, 302, 307, 308][number % 4]),
            "forward_query": (["off", "append"][number % 2]), "append_click_id": number % 3 == 0,
        }));
    }
    for chunk in links.chunks(100) {
        let created = owner.post("/links/bulk", json!({"links": chunk})).await;
        assert!(!created.body.to_string().contains("error"), "{}", created.body);
    }
    let export = async |browser: &Browser| {
        browser.bare(Method::GET, &browser.path("/links/export")).send().await.unwrap()
    };
    let answer = export(&owner).await;
    assert_eq!(answer.headers()["content-type"], "text/csv; charset=utf-8");
    assert_eq!(answer.headers()["content-disposition"], r#"attachment; filename="links.csv""#);
    let file = answer.text().await.unwrap();
    assert_eq!(file.split("\r\n").count(), 1_003, "each link is a line");
    assert!(file.contains(r#""'=HYPERLINK(""x"",""y"")""#), "a text, not a formula");

    let created =
        owner.send(Method::POST, "/app/api/workspaces", Some(json!({"name": "b", "kind": "personal"}))).await;
    let mut copy = owner.clone();
    copy.workspace = text(&created.body["id"]);
    let mut postgres = server.engines.postgres().await;
    sqlx::query("UPDATE links SET slug = 'old-' || slug").execute(&mut postgres).await.unwrap();
    let report = import(&copy, false, file.clone()).await.body;
    assert_eq!(numbers(&report), [1_001, 1_001, 0], "{report}");
    let same: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM links a JOIN links b
            ON a.slug = 'old-' || b.slug AND a.workspace_id <> b.workspace_id
         WHERE (a.name, a.destination, a.tags, a.is_active, a.external_id, a.redirect_status, a.forward_query,
                a.append_click_id) = (b.name, b.destination, b.tags, b.is_active, b.external_id, b.redirect_status,
                b.forward_query, b.append_click_id)
           AND a.expires_at IS NOT DISTINCT FROM b.expires_at",
    )
    .fetch_one(&mut postgres)
    .await
    .unwrap();
    assert_eq!(same, 1_001);
    // All columns except the id and the time of creation.
    let cells = |file: &str| {
        file.split("\r\n").map(|line| line.rsplitn(4, ',').last().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(cells(&export(&copy).await.text().await.unwrap()), cells(&file));
}

#[tokio::test]
async fn an_import_of_a_suspended_account_is_kept_for_30_days() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    assert_eq!(import(&owner, false, "destination\nhttps://example.com/\n").await.body["created"], 1);
    server.admin(&["suspend-account", "--account", &server.account, "--reason", "Unpaid"]).await;
    let removed_at = async |days: i32| {
        // As if it had been interrupted by the suspension.
        sqlx::query("UPDATE link_imports SET done_at = NULL, created_at = now() - make_interval(days => $1)")
            .bind(days)
            .execute(&mut server.engines.postgres().await)
            .await
            .unwrap();
        server.admin(&["sweep"]).await["removed"]["imports"].clone()
    };
    assert_eq!(removed_at(29).await, 0);
    assert_eq!(removed_at(31).await, 1);
}

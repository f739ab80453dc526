//! A member's password, sessions and second factor; roles; and the audit trail.

use std::sync::atomic::{AtomicU32, Ordering};

use hmac::{Hmac, KeyInit as _, Mac as _};
use reqwest::Method;
use schemas::message::{Click, Message as _};
use schemas::row::ClickRow;
use serde_json::{Value, json};
use sha1::Sha1;

use crate::dashboard::{Browser, PASSWORD};
use crate::server::{Answer, Server, answer, config, text};
use crate::stats_model::store_rows;

const NEW: &str = "another long password";

fn code(answer: &Answer) -> (u16, String) {
    (answer.status.as_u16(), text(&answer.body["code"]))
}

async fn post(browser: &Browser, path: &str, body: Value) -> Answer {
    browser.send(Method::POST, &format!("/app/api/{path}"), Some(body)).await
}

async fn is_signed_in(browser: &Browser) -> bool {
    browser.send(Method::GET, "/app/api/session", None).await.status == 200
}

#[tokio::test]
async fn a_member_changes_the_password_and_other_sessions_end() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let mut other = Browser::new(&server);
    assert_eq!(other.sign_in("ada@example.com", PASSWORD).await.status, 200);
    let change = async |current: &str, new: &str| {
        post(&owner, "password", json!({"current_password": current, "new_password": new})).await
    };
    assert_eq!(code(&change("wrong wrong wrong", NEW).await), (403, "FORBIDDEN".to_owned()));
    assert_eq!(change(PASSWORD, "short").await.status, 400);
    assert!(is_signed_in(&other).await);
    assert_eq!(change(PASSWORD, NEW).await.status, 204);
    assert!(is_signed_in(&owner).await && !is_signed_in(&other).await);
    assert_eq!(other.sign_in("ada@example.com", PASSWORD).await.status, 401);
    assert_eq!(other.sign_in("ada@example.com", NEW).await.status, 200);
    for _ in 0..10 {
        change("wrong wrong wrong", NEW).await;
    }
    assert_eq!(change(NEW, PASSWORD).await.status, 429, "guesses are limited");
}

#[tokio::test]
async fn a_member_sees_and_ends_sessions() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let sign_in = async |agent: &str| {
        let mut browser = Browser::new(&server);
        let request = browser.request(Method::POST, "/app/api/sign-in").header("user-agent", agent);
        let answered = answer(request.json(&json!({"email": "ada@example.com", "password": PASSWORD}))).await;
        browser.keep_cookie(&answered);
        browser
    };
    let (phone, tablet) = (sign_in("Phone").await, sign_in("Tablet").await);
    let sessions = async || owner.send(Method::GET, "/app/api/sessions", None).await.body["sessions"].clone();
    let listed = sessions().await;
    assert_eq!(listed.as_array().unwrap().len(), 3);
    let current: Vec<&Value> =
        listed.as_array().unwrap().iter().filter(|one| one["is_current"] == true).collect();
    assert_eq!(current.len(), 1);
    let of_phone = listed.as_array().unwrap().iter().find(|one| one["user_agent"] == "Phone").unwrap();
    assert!(of_phone["created_at"].is_string() && of_phone["last_seen_at"].is_string());
    let path = format!("/app/api/sessions/{}", text(&of_phone["id"]));
    assert_eq!(owner.send(Method::DELETE, &path, None).await.status, 204);
    assert_eq!(owner.send(Method::DELETE, &path, None).await.status, 404);
    assert!(!is_signed_in(&phone).await && is_signed_in(&tablet).await);
    assert_eq!(owner.send(Method::DELETE, "/app/api/sessions", None).await.status, 204);
    assert!(is_signed_in(&owner).await && !is_signed_in(&tablet).await);
    let trail = owner.send(Method::GET, "/app/api/audit?limit=2", None).await.body;
    let actions: Vec<&Value> =
        trail["entries"].as_array().unwrap().iter().map(|entry| &entry["action"]).collect();
    assert_eq!(actions, ["end-other-sessions", "end-session"]);
}

/// Returns the code that an authenticator shows after this number of half minutes.
fn totp(secret: &str, steps: i64) -> String {
    let bits = secret.bytes().map(|byte| match byte {
        b'A'..=b'Z' => byte - b'A',
        _ => byte - b'2' + 26,
    });
    let bits: String = bits.map(|five| format!("{five:05b}")).collect();
    let key: Vec<u8> = bits
        .as_bytes()
        .chunks_exact(8)
        .map(|byte| u8::from_str_radix(std::str::from_utf8(byte).unwrap(), 2).unwrap())
        .collect();
    let mut mac = Hmac::<Sha1>::new_from_slice(&key).unwrap();
    mac.update(&(chrono::Utc::now().timestamp() / 30 + steps).to_be_bytes());
    let digest = mac.finalize().into_bytes();
    let at = usize::from(digest[19] & 15);
    let number = u32::from_be_bytes(digest[at..at + 4].try_into().unwrap()) & 0x7fff_ffff;
    format!("{:06}", number % 1_000_000)
}

#[tokio::test]
async fn a_second_factor_is_required_and_its_codes_work_once() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    assert_eq!(post(&owner, "two-factor/confirm", json!({"code": "000000"})).await.status, 400, "no setup");
    assert_eq!(post(&owner, "two-factor", json!({})).await.status, 400, "without the password");
    let refused = post(&owner, "two-factor", json!({"password": "wrong wrong wrong"})).await;
    assert_eq!(code(&refused), (403, "FORBIDDEN".to_owned()));
    let begun = post(&owner, "two-factor", json!({"password": PASSWORD})).await.body;
    let secret = text(&begun["secret"]);
    assert!(text(&begun["otpauth_url"]).contains(&format!("secret={secret}")), "{begun}");
    let qr = owner.bare(Method::GET, "/app/api/two-factor/qr?turn=1").send().await.unwrap();
    assert_eq!(qr.headers()["content-type"], "image/svg+xml");
    // Sign-in does not require it before it is confirmed.
    let mut elsewhere = Browser::new(&server);
    assert_eq!(elsewhere.sign_in("ada@example.com", PASSWORD).await.status, 200);
    // Only the session that gave the password sees and confirms the secret.
    let stolen = elsewhere.send(Method::GET, "/app/api/two-factor/qr", None).await;
    assert_eq!(stolen.status, 404);
    assert_eq!(post(&elsewhere, "two-factor/confirm", json!({"code": totp(&secret, 0)})).await.status, 400);
    let wrong = post(&owner, "two-factor/confirm", json!({"code": "abcdef"})).await;
    assert_eq!(code(&wrong), (403, "FORBIDDEN".to_owned()));
    // Use the codes of this half minute and of the next, so that neither expires before its use.
    let first = totp(&secret, 0);
    let confirmed = post(&owner, "two-factor/confirm", json!({"code": first})).await;
    let recovery: Vec<String> =
        confirmed.body["recovery_codes"].as_array().unwrap().iter().map(text).collect();
    assert_eq!(recovery.len(), 10);
    assert!(
        is_signed_in(&owner).await && !is_signed_in(&elsewhere).await,
        "it began with the password alone"
    );
    let again = post(&owner, "two-factor", json!({"password": PASSWORD})).await;
    assert_eq!(again.status, 400, "already enabled");
    let session = owner.send(Method::GET, "/app/api/session", None).await.body;
    assert_eq!(session["user"]["two_factor"], true);

    let sign_in = async |given: Option<&str>| {
        let mut body = json!({"email": "ada@example.com", "password": PASSWORD});
        if let Some(given) = given {
            body["code"] = json!(given);
        }
        post(&Browser::new(&server), "sign-in", body).await
    };
    assert_eq!(code(&sign_in(None).await), (401, "TWO_FACTOR_REQUIRED".to_owned()));
    assert_eq!(
        code(&sign_in(Some(&first)).await),
        (401, "UNAUTHORIZED".to_owned()),
        "used by the confirmation"
    );
    let next = totp(&secret, 1);
    assert_eq!(sign_in(Some(&next)).await.status, 200);
    assert_eq!(sign_in(Some(&next)).await.status, 401, "used");
    assert_eq!(sign_in(Some(&recovery[0].to_uppercase())).await.status, 200);
    assert_eq!(sign_in(Some(&recovery[0])).await.status, 401, "used");

    let remove = async |password: &str, code: &str| {
        let body = json!({"password": password, "code": code});
        owner.send(Method::DELETE, "/app/api/two-factor", Some(body)).await.status.as_u16()
    };
    assert_eq!(remove("wrong wrong wrong", &recovery[1]).await, 403);
    assert_eq!(remove(PASSWORD, "000000").await, 403);
    assert_eq!(remove(PASSWORD, &recovery[1]).await, 204);
    assert_eq!(remove(PASSWORD, &recovery[2]).await, 400, "off already");
    assert_eq!(sign_in(None).await.status, 200);
}

/// Switches a member's second factor on. Returns its secret.
async fn enable_two_factor(browser: &Browser) -> String {
    let secret = text(&post(browser, "two-factor", json!({"password": PASSWORD})).await.body["secret"]);
    let confirmed = post(browser, "two-factor/confirm", json!({"code": totp(&secret, 0)})).await;
    assert_eq!(confirmed.status, 200, "{}", confirmed.body);
    secret
}

#[tokio::test]
async fn wrong_codes_are_limited_over_all_addresses_and_sessions() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let secret = text(&post(&owner, "two-factor", json!({"password": PASSWORD})).await.body["secret"]);
    let confirm = async |given: &str| code(&post(&owner, "two-factor/confirm", json!({"code": given})).await);
    for _ in 0..10 {
        assert_eq!(confirm("abcdef").await, (403, "FORBIDDEN".to_owned()));
    }
    assert_eq!(confirm(&totp(&secret, 0)).await.0, 429, "a confirmation, too");
    let quarter_of_an_hour_later = async || {
        sqlx::query("UPDATE sign_in_attempts SET began_at = began_at - interval '16 minutes'")
            .execute(&mut server.engines.postgres().await)
            .await
            .unwrap();
    };
    quarter_of_an_hour_later().await;
    let secret = enable_two_factor(&owner).await;
    for _ in 0..11 {
        let refused = confirm("abcdef").await;
        assert_eq!(refused, (400, "BAD_REQUEST".to_owned()), "uses up no code of the sign-in");
    }
    let mut config = config(&server.engines);
    config.trusted_proxies = "127.0.0.0/8".parse().unwrap();
    let behind_a_proxy = Server::serve(server.engines.clone(), config).await;
    let addresses = AtomicU32::new(1);
    let sign_in = async |given: Option<&str>| {
        let mut body = json!({"email": "ada@example.com", "password": PASSWORD});
        if let Some(given) = given {
            body["code"] = json!(given);
        }
        let address = format!("203.0.113.{}", addresses.fetch_add(1, Ordering::Relaxed));
        let stranger = Browser::new(&behind_a_proxy).request(Method::POST, "/app/api/sign-in");
        let answered = answer(stranger.header("x-forwarded-for", address).json(&body)).await;
        (answered.status.as_u16(), answered.body["code"].as_str().unwrap_or_default().to_owned())
    };
    let remove = async |given: &str| {
        let body = json!({"password": PASSWORD, "code": given});
        owner.send(Method::DELETE, "/app/api/two-factor", Some(body)).await.status.as_u16()
    };
    let (wrong, required) = ((401, "UNAUTHORIZED".to_owned()), (401, "TWO_FACTOR_REQUIRED".to_owned()));
    for _ in 0..5 {
        assert_eq!(sign_in(Some("abcdef")).await, wrong);
        // The password alone forgets no wrong code.
        assert_eq!(sign_in(None).await, required);
        assert_eq!(remove("abcdef").await, 403);
    }
    let limited = (429, "RATE_LIMITED".to_owned());
    assert_eq!(sign_in(Some("abcdef")).await, limited);
    assert_eq!(sign_in(Some(&totp(&secret, 1))).await, limited, "a right code, too");
    assert_eq!(remove(&totp(&secret, 1)).await, 429);
    assert_eq!(sign_in(None).await, required, "a member learns why");
    assert!(is_signed_in(&owner).await);

    quarter_of_an_hour_later().await;
    for _ in 0..9 {
        assert_eq!(sign_in(Some("abcdef")).await, wrong);
    }
    assert_eq!(sign_in(Some(&totp(&secret, 1))).await.0, 200);
    assert_eq!(sign_in(Some("abcdef")).await, wrong, "a right code forgets the wrong ones");
}

#[tokio::test]
async fn an_owner_removes_the_lost_second_factor_of_a_member() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let (member, id) = owner.with_member(&server, "grace@example.com", "editor").await;
    let (viewer, _) = owner.with_member(&server, "vera@example.com", "viewer").await;
    let other = owner.of_other_account(&server, "eve@example.com", "business").await;
    enable_two_factor(&member).await;
    let listed = async || {
        let members = owner.send(Method::GET, "/app/api/members", None).await.body;
        let members = members["members"].as_array().unwrap().clone();
        members.iter().find(|member| member["id"] == id).unwrap()["two_factor"].clone()
    };
    assert_eq!(listed().await, true);
    let seen = viewer.send(Method::GET, "/app/api/members", None).await.body;
    assert!(!seen.to_string().contains("two_factor"), "only owners see who has one: {seen}");
    let reset = async |browser: &Browser, id: &str| {
        let path = format!("/app/api/members/{id}/two-factor");
        browser.send(Method::DELETE, &path, None).await.status.as_u16()
    };
    assert_eq!(reset(&viewer, &id).await, 403, "no owner");
    assert_eq!(reset(&other, &id).await, 404, "another account's");
    let own = text(&owner.send(Method::GET, "/app/api/session", None).await.body["user"]["id"]);
    assert_eq!(reset(&owner, &own).await, 403, "the own one takes password and code");
    assert_eq!(listed().await, true);
    assert_eq!(reset(&owner, &id).await, 204);
    assert_eq!(listed().await, false);
    assert!(!is_signed_in(&member).await);
    assert_eq!(Browser::new(&server).sign_in("grace@example.com", PASSWORD).await.status, 200);
    let entries = owner.send(Method::GET, "/app/api/audit", None).await.body["entries"].clone();
    let of_reset = |entry: &&Value| entry["action"] == "reset-two-factor";
    let found: Vec<&Value> = entries.as_array().unwrap().iter().filter(of_reset).collect();
    assert_eq!(found.len(), 1, "{entries}");
    assert_eq!((&found[0]["subject"], &found[0]["actor"]), (&json!(id), &json!(own)));
}

#[tokio::test]
async fn nothing_of_a_removed_members_second_factor_stays() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let (member, id) = owner.with_member(&server, "grace@example.com", "editor").await;
    enable_two_factor(&member).await;
    let left = "SELECT (SELECT count(*) FROM recovery_codes) + count(totp_sealed) FROM users";
    let left = async || -> i64 {
        sqlx::query_scalar(left).fetch_one(&mut server.engines.postgres().await).await.unwrap()
    };
    assert_eq!(left().await, 11);
    assert_eq!(owner.send(Method::DELETE, &format!("/app/api/members/{id}"), None).await.status, 204);
    assert_eq!(left().await, 0);
}

#[tokio::test]
async fn an_operator_removes_a_lost_second_factor() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    enable_two_factor(&owner).await;
    server.admin(&["reset-two-factor", "--email", "ada@example.com"]).await;
    assert!(!is_signed_in(&owner).await);
    assert_eq!(Browser::new(&server).sign_in("ada@example.com", PASSWORD).await.status, 200);
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM recovery_codes")
        .fetch_one(&mut server.engines.postgres().await)
        .await
        .unwrap();
    assert_eq!(left, 0);
}

/// Returns the cookie that makes a browser known.
fn device_of(answer: &Answer) -> String {
    let device = answer.headers.get_all("set-cookie").iter().find_map(|value| {
        let pair = value.to_str().unwrap().split(';').next().unwrap();
        pair.starts_with("hopline_device=").then(|| pair.to_owned())
    });
    device.unwrap()
}

#[tokio::test]
async fn a_known_browser_is_a_stranger_once_the_password_is_another_one() {
    let server = Server::start().await;
    let mut owner = Browser::set_up(&server).await;
    let device = device_of(&owner.sign_in("ada@example.com", PASSWORD).await);
    for _ in 0..10 {
        assert_eq!(Browser::new(&server).sign_in("ada@example.com", "wrong wrong wrong").await.status, 401);
    }
    let page = Browser::new(&server);
    let sign_in = async |cookie: &str, password: &str| {
        let request = page.request(Method::POST, "/app/api/sign-in").header("cookie", cookie);
        answer(request.json(&json!({"email": "ada@example.com", "password": password}))).await.status.as_u16()
    };
    assert_eq!(sign_in(&device, PASSWORD).await, 200);
    let mut parts = device.split('.');
    let (name, until, signature) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
    let later = until.parse::<i64>().unwrap() + 1;
    assert_eq!(sign_in(&format!("{name}.{later}.{signature}"), PASSWORD).await, 429, "its end is signed");
    let change = json!({"current_password": PASSWORD, "new_password": NEW});
    let changed = post(&owner, "password", change).await;
    assert_eq!(changed.status, 204);
    assert_eq!(sign_in(&device, NEW).await, 429);
    assert_eq!(sign_in(&device_of(&changed), NEW).await, 200, "the browser that changed it stays known");
}

#[tokio::test]
async fn others_wrong_passwords_do_not_lock_out_a_known_browser() {
    let server = Server::start().await;
    let mut owner = Browser::set_up(&server).await;
    let device = device_of(&owner.sign_in("ada@example.com", PASSWORD).await);
    let mut stranger = Browser::new(&server);
    for _ in 0..10 {
        assert_eq!(stranger.sign_in("ada@example.com", "wrong wrong wrong").await.status, 401);
    }
    assert_eq!(stranger.sign_in("ada@example.com", PASSWORD).await.status, 429);
    let sign_in = async |cookie: &str, password: &str| {
        let request = stranger.request(Method::POST, "/app/api/sign-in").header("cookie", cookie);
        answer(request.json(&json!({"email": "ada@example.com", "password": password}))).await.status.as_u16()
    };
    assert_eq!(sign_in(&device, PASSWORD).await, 200);
    assert_eq!(sign_in("hopline_device=AAAA.BBBB", PASSWORD).await, 429, "forged");
    for _ in 0..10 {
        assert_eq!(sign_in(&device, "wrong wrong wrong").await, 401);
    }
    assert_eq!(sign_in(&device, PASSWORD).await, 429, "a known browser has a limit, too");
}

#[tokio::test]
async fn a_role_changes_at_once_and_an_owner_remains() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let (member, id) = owner.with_member(&server, "grace@example.com", "editor").await;
    let set = async |id: &str, role: &str| {
        owner.send(Method::PATCH, &format!("/app/api/members/{id}"), Some(json!({"role": role}))).await
    };
    let link = json!({"name": "a", "destination": "https://example.com"});
    assert_eq!(member.post("/links", link.clone()).await.status, 201);
    let changed = set(&id, "viewer").await;
    assert_eq!((changed.status.as_u16(), &changed.body["role"]), (200, &json!("viewer")));
    assert_eq!(code(&member.post("/links", link.clone()).await), (403, "FORBIDDEN".to_owned()));
    assert_eq!(member.get("/links").await.status, 200);
    let own = text(&owner.send(Method::GET, "/app/api/session", None).await.body["user"]["id"]);
    assert_eq!(code(&set(&own, "editor").await), (403, "FORBIDDEN".to_owned()), "the last owner");
    assert_eq!(set(&own, "owner").await.status, 200);
    assert_eq!(set(&id, "king").await.status, 400);
    assert_eq!(set(&id, "owner").await.status, 200);
    assert_eq!(set(&own, "editor").await.status, 200, "another owner remains");
    assert_eq!(set(&id, "editor").await.status, 403, "an editor cannot change roles");
}

#[tokio::test]
async fn a_viewer_sees_no_personal_fields() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let (viewer, _) = owner.with_member(&server, "vera@example.com", "viewer").await;
    let link = server.create_link(json!({"name": "a", "destination": "https://example.com"})).await;
    let click = server.click_ids().mint(text(&link["id"]).parse().unwrap(), chrono::Utc::now(), [7; 10]);
    let body = json!({"click_id": click, "user_email": "buyer@example.com", "user_name": "B", "external_user_id": "7"});
    let conversion = server.request(Method::POST, "/api/conversions").json(&body);
    let conversion = conversion.header("referer", "https://shop.example/thanks?order=7");
    assert_eq!(answer(conversion).await.status, 201);
    let seen =
        async |browser: &Browser| browser.get("/conversions?class=all").await.body["conversions"][0].clone();
    assert_eq!(seen(&owner).await["user_email"], "buyer@example.com");
    let conversion = seen(&viewer).await;
    assert_eq!(conversion["click_id"], click);
    for field in ["external_user_id", "user_name", "user_email", "page_url"] {
        assert_eq!(conversion[field], Value::Null, "{field}");
    }
    assert_eq!(seen(&owner).await["page_url"], "https://shop.example/thanks?order=7");
    assert_eq!(conversion["host"], "shop.example");

    let mut click = Click::decode(include_bytes!("../../../schemas/fixtures/click.v1.json")).unwrap();
    (click.link_id, click.workspace_id) =
        (text(&link["id"]).parse().unwrap(), server.workspace.parse().unwrap());
    click.occurred_at = schemas::time::to_millis(chrono::Utc::now());
    click.external_click_id = Some("ada@example.com".to_owned());
    let row = ClickRow { broker_ts: click.occurred_at, click, src: 1 << 16, koff: 0 };
    store_rows(&server, &[row]).await;
    let page = async |browser: &Browser| browser.get("/clicks").await.body["clicks"][0].clone();
    assert_eq!(page(&owner).await["external_click_id"], "ada@example.com");
    assert_eq!(page(&viewer).await["external_click_id"], Value::Null);
    for format in ["csv", "ndjson"] {
        let export = async |browser: &Browser| {
            let path = browser.path(&format!("/clicks?format={format}"));
            browser.bare(Method::GET, &path).send().await.unwrap().text().await.unwrap()
        };
        assert!(export(&owner).await.contains("ada@example.com"), "{format}");
        let seen = export(&viewer).await;
        assert!(seen.contains("spring") && !seen.contains("ada@example.com"), "{seen}");
    }
}

#[tokio::test]
async fn a_viewer_does_not_see_webhooks() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let (viewer, _) = owner.with_member(&server, "vera@example.com", "viewer").await;
    let hook = json!({"url": "https://hooks.example/secret-in-the-path", "events": ["click.created"]});
    let id = text(&owner.post("/webhooks", hook).await.body["id"]);
    for path in ["/webhooks".to_owned(), format!("/webhooks/{id}"), format!("/webhooks/{id}/failures")] {
        assert_eq!(owner.get(&path).await.status, 200, "{path}");
        assert_eq!(code(&viewer.get(&path).await), (403, "FORBIDDEN".to_owned()), "{path}");
    }
}

#[tokio::test]
async fn the_trail_tells_where_webhooks_went_and_nothing_more_of_their_urls() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let hook = json!({"url": "https://hooks.example:8443/token-in-path", "events": ["click.created"]});
    let path = owner.path(&format!("/webhooks/{}", text(&owner.post("/webhooks", hook).await.body["id"])));
    let change = json!({"url": "https://other.example/?token-in-query"});
    assert_eq!(owner.send(Method::PATCH, &path, Some(change)).await.status, 200);
    assert_eq!(owner.send(Method::POST, &format!("{path}/rotate-secret"), None).await.status, 200);
    assert_eq!(owner.send(Method::DELETE, &path, None).await.status, 204);
    let trail = owner.send(Method::GET, "/app/api/audit?limit=4", None).await.body;
    let entries = trail["entries"].as_array().unwrap().iter();
    let entries: Vec<(String, String)> =
        entries.map(|entry| (text(&entry["action"]), text(&entry["details"]["sends_to"]))).collect();
    let expected = [
        ("delete-endpoint", "https://other.example"),
        ("rotate-secret", "https://other.example"),
        ("update-endpoint", "https://other.example"),
        ("create-endpoint", "https://hooks.example:8443"),
    ];
    assert_eq!(entries, expected.map(|(action, origin)| (action.to_owned(), origin.to_owned())));
    assert!(!trail.to_string().contains("token-in"), "{trail}");
}

#[tokio::test]
async fn the_keys_of_a_removed_or_demoted_member_are_revoked_unless_the_owner_keeps_them() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let key = async |browser: &Browser| {
        text(&browser.post("/keys", json!({"name": "a", "scope": "read"})).await.body["key"])
    };
    let works = async |key: &str| server.send_as(key, Method::GET, "/api/links", None).await.status.as_u16();
    let (member, id) = owner.with_member(&server, "grace@example.com", "editor").await;
    let (own, theirs) = (key(&owner).await, key(&member).await);
    let listed = owner.get("/keys").await.body;
    assert_eq!(listed["keys"][0]["created_by"], id);
    assert_eq!(listed["keys"][2]["created_by"], Value::Null, "an operator's key");
    let set = async |query: &str, role: &str| {
        let path = format!("/app/api/members/{id}{query}");
        owner.send(Method::PATCH, &path, Some(json!({"role": role}))).await.status.as_u16()
    };
    assert_eq!((set("", "owner").await, works(&theirs).await), (200, 200));
    assert_eq!((set("?revoke_keys=false", "viewer").await, works(&theirs).await), (200, 200));
    assert_eq!((set("", "viewer").await, works(&theirs).await), (200, 401));
    assert_eq!(set("?revoke_keys=perhaps", "viewer").await, 400);

    for (email, query, left) in
        [("kept@example.com", "?revoke_keys=false", 200), ("gone@example.com", "", 401)]
    {
        let (member, id) = owner.with_member(&server, email, "editor").await;
        let theirs = key(&member).await;
        let path = format!("/app/api/members/{id}{query}");
        assert_eq!(owner.send(Method::DELETE, &path, None).await.status, 204);
        assert_eq!(works(&theirs).await, left, "{email}");
    }
    assert_eq!(works(&own).await, 200);
}

#[tokio::test]
async fn only_owners_read_their_accounts_audit_trail() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let other = owner.of_other_account(&server, "eve@example.com", "business").await;
    other.post("/keys", json!({"name": "theirs", "scope": "read"})).await;
    owner.post("/keys", json!({"name": "ours", "scope": "read"})).await;
    let hook = json!({"url": "https://hooks.example/", "events": ["click.created"]});
    let hook = text(&server.send(Method::POST, "/api/webhooks", Some(hook)).await.body["id"]);
    let bulk = json!({"links": [{"name": "a", "destination": "https://example.com"}]});
    server.send(Method::POST, "/api/links/bulk", Some(bulk)).await;
    crate::dashboard_import::import(&owner, false, "destination\nhttps://example.com/2\n").await;
    owner.bare(Method::GET, &owner.path("/links/export")).send().await.unwrap().bytes().await.unwrap();
    let page = async |query: &str| {
        let answered = owner.send(Method::GET, &format!("/app/api/audit{query}"), None).await;
        assert_eq!(answered.status, 200, "{}", answered.body);
        answered.body
    };
    let trail = page("").await;
    let actions: Vec<String> =
        trail["entries"].as_array().unwrap().iter().map(|one| text(&one["action"])).collect();
    assert_eq!(actions[..5], ["export", "import-links", "create-links", "create-endpoint", "create-key"]);
    assert!(actions.contains(&"sign-in".to_owned()) && actions.contains(&"set-up".to_owned()), "{actions:?}");
    let entry = &trail["entries"][3];
    assert!(text(&entry["actor"]).starts_with("key_"), "{entry}");
    assert_eq!((&entry["subject"], &entry["workspace_id"]), (&json!(hook), &json!(server.workspace)));
    assert!(!trail.to_string().contains("theirs"));
    let first = page("?limit=2").await;
    let second = page(&format!("?limit=2&cursor={}", text(&first["next_cursor"]))).await;
    assert_eq!(second["entries"][0], trail["entries"][2]);
    let (member, _) = owner.with_member(&server, "grace@example.com", "editor").await;
    assert_eq!(member.send(Method::GET, "/app/api/audit", None).await.status, 403);
}

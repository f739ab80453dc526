//! Set-up, sign-in and sign-out, sessions and members.

use reqwest::Method;
use serde_json::json;
use service::config::Cidrs;

use crate::dashboard::{Browser, PASSWORD};
use crate::server::{Server, answer, config, text};

#[tokio::test]
async fn the_first_owner_is_set_up_once_with_the_token() {
    let server = Server::start().await;
    let mut browser = Browser::new(&server);
    let needed = async |browser: &Browser| {
        browser.send(Method::GET, "/app/api/setup", None).await.body["needed"].clone()
    };
    assert_eq!(needed(&browser).await, true);
    let owner = |token: &str, password: &str| {
        let email = "ada@example.com";
        json!({"name": "Ada", "email": email, "password": password, "token": token})
    };
    let refused = browser.send(Method::POST, "/app/api/setup", Some(owner("wrong", PASSWORD))).await;
    assert_eq!((refused.status.as_u16(), &refused.body["code"]), (403, &json!("FORBIDDEN")));
    let token = text(&server.admin(&["setup-token"]).await["setup_token"]);
    let short = browser.send(Method::POST, "/app/api/setup", Some(owner(&token, "elevenchars"))).await;
    assert_eq!((short.status.as_u16(), &short.body["details"][0]["field"]), (400, &json!("password")));

    let done = browser.send(Method::POST, "/app/api/setup", Some(owner(&token, PASSWORD))).await;
    assert_eq!(done.status, 200, "{}", done.body);
    assert_eq!(done.body["user"]["role"], "owner");
    assert_eq!(done.body["account"]["id"], json!(server.account), "the existing account");
    assert_eq!(done.body["workspaces"][0]["id"], json!(server.workspace));
    assert_eq!(done.body["public_url"], "https://go.example");
    let cookie = done.headers["set-cookie"].to_str().unwrap();
    assert!(cookie.ends_with("; Path=/app; Max-Age=2592000; HttpOnly; SameSite=Lax"), "{cookie}");
    assert_eq!(needed(&browser).await, false);
    let again = browser.send(Method::POST, "/app/api/setup", Some(owner(&token, PASSWORD))).await;
    assert_eq!(again.status, 403);

    assert_eq!(browser.sign_in("ADA@example.com", PASSWORD).await.status, 200, "emails ignore case");
    let session = browser.send(Method::GET, "/app/api/session", None).await;
    assert_eq!(session.body, done.body);
}

#[tokio::test]
async fn setup_creates_the_first_account() {
    let engines = tests::engines::isolated().await;
    let config = config(&engines);
    let server = Server::serve(engines, config).await;
    let browser = Browser::set_up(&server).await;
    let session = browser.send(Method::GET, "/app/api/session", None).await.body;
    assert_eq!(
        (&session["account"]["plan"], &session["workspaces"][0]["kind"]),
        (&json!("business"), &json!("personal"))
    );
}

#[tokio::test]
async fn countries_are_attributed_where_the_licence_requires_it() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let attribution = async |server: &Server| {
        let mut browser = owner.clone();
        browser.at(server);
        browser.send(Method::GET, "/app/api/session", None).await.body["attribution"].clone()
    };
    assert_eq!(attribution(&server).await, json!(null), "no country data");
    let mut with_lists = config(&server.engines);
    with_lists.data_dir = Some("lists".into());
    let with_lists = Server::serve(server.engines.clone(), with_lists).await;
    let expected = json!({"text": "IP Geolocation by DB-IP", "url": "https://db-ip.com"});
    assert_eq!(attribution(&with_lists).await, expected);
}

#[tokio::test]
async fn an_unknown_email_and_a_wrong_password_get_the_same_answer() {
    let server = Server::start().await;
    let mut browser = Browser::set_up(&server).await;
    browser.cookie = None;
    let wrong = browser.sign_in("ada@example.com", "correct horse batterz").await;
    let unknown = browser.sign_in("eve@example.com", PASSWORD).await;
    assert_eq!((wrong.status.as_u16(), unknown.status.as_u16()), (401, 401));
    assert_eq!(wrong.body, unknown.body);
    assert_eq!(browser.cookie, None);
    assert!(!wrong.headers.contains_key("set-cookie"));
}

#[tokio::test]
async fn sign_in_attempts_are_limited_over_all_instances() {
    let server = Server::start().await;
    let behind_a_proxy = async || {
        let mut config = config(&server.engines);
        config.trusted_proxies = "127.0.0.0/8".parse::<Cidrs>().unwrap();
        Server::serve(server.engines.clone(), config).await
    };
    let (one, other) = (behind_a_proxy().await, behind_a_proxy().await);
    Browser::set_up(&server).await;
    let attempt = async |browser: &Browser, address: &str, email: &str, password: &str| {
        let body = json!({"email": email, "password": password});
        let request = browser.request(Method::POST, "/app/api/sign-in").header("x-forwarded-for", address);
        answer(request.json(&body)).await
    };
    let (here, there) = (Browser::new(&one), Browser::new(&other));
    let fail = async |addresses: std::ops::Range<u8>| {
        for address in addresses.map(|number| format!("198.51.100.{number}")) {
            for number in 0..10 {
                let browser = if number % 2 == 0 { &here } else { &there };
                assert_eq!(attempt(browser, &address, "ada@example.com", "wrong").await.status, 401);
            }
            for browser in [&here, &there] {
                assert_eq!(attempt(browser, &address, "ada@example.com", PASSWORD).await.status, 429);
            }
        }
    };
    // Failures from one address do not lock out others.
    fail(0..1).await;
    assert_eq!(attempt(&here, "203.0.113.1", "ada@example.com", PASSWORD).await.status, 200);
    fail(1..11).await;
    for browser in [&here, &there] {
        let refused = attempt(browser, "203.0.113.1", "Ada@Example.com", PASSWORD).await;
        assert_eq!((refused.status.as_u16(), &refused.body["code"]), (429, &json!("RATE_LIMITED")));
        let wait: u64 = refused.headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((1..=900).contains(&wait), "{wait}");
    }
    // Trying many emails is limited and does not count against their owners.
    let address = "203.0.113.9";
    let mut refused = 0;
    for number in 0..70 {
        let answer = attempt(&there, address, &format!("{number}@example.com"), "wrong").await;
        refused += u32::from(answer.status == 429);
    }
    assert_eq!(refused, 10);
    let kept: Vec<Vec<u8>> = sqlx::query_scalar("SELECT who FROM sign_in_attempts")
        .fetch_all(&mut server.engines.postgres().await)
        .await
        .unwrap();
    assert!(kept.iter().all(|who| who.len() == 32), "no address and no email is kept");
    sqlx::query("UPDATE sign_in_attempts SET began_at = began_at - interval '16 minutes'")
        .execute(&mut server.engines.postgres().await)
        .await
        .unwrap();
    assert_eq!(attempt(&here, "203.0.113.1", "ada@example.com", PASSWORD).await.status, 200, "it expires");
}

#[tokio::test]
async fn sign_out_ends_one_session_or_all() {
    let server = Server::start().await;
    let first = Browser::set_up(&server).await;
    let mut others = [Browser::new(&server), Browser::new(&server)];
    for browser in &mut others {
        browser.sign_in("ada@example.com", PASSWORD).await;
    }
    let status =
        async |browser: &Browser| browser.send(Method::GET, "/app/api/session", None).await.status.as_u16();
    let out = first.send(Method::POST, "/app/api/sign-out", None).await;
    assert_eq!(out.status, 204);
    assert!(out.headers["set-cookie"].to_str().unwrap().starts_with("hopline_session=; "));
    assert_eq!((status(&first).await, status(&others[0]).await), (401, 200));
    assert_eq!(others[0].send(Method::POST, "/app/api/sign-out-everywhere", None).await.status, 204);
    assert_eq!((status(&others[0]).await, status(&others[1]).await), (401, 401));
    assert_eq!(first.send(Method::POST, "/app/api/sign-out", None).await.status, 204, "without a session");
}

#[tokio::test]
async fn a_member_has_at_most_a_hundred_sessions() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    sqlx::query(
        "INSERT INTO sessions (token_sha256, user_id, user_agent, seen_at)
         SELECT sha256(number::text::bytea), user_id, 'Old', now() - make_interval(mins => number)
         FROM sessions, generate_series(1, 150) AS number",
    )
    .execute(&mut server.engines.postgres().await)
    .await
    .unwrap();
    let mut browser = Browser::new(&server);
    assert_eq!(browser.sign_in("ada@example.com", PASSWORD).await.status, 200);
    for browser in [&owner, &browser] {
        let listed = browser.send(Method::GET, "/app/api/sessions", None).await.body;
        assert_eq!(
            listed["sessions"].as_array().unwrap().len(),
            100,
            "those that were not seen for longest ended"
        );
    }
}

#[tokio::test]
async fn a_session_expires() {
    let server = Server::start().await;
    let browser = Browser::set_up(&server).await;
    for age in
        ["seen_at = now() - interval '8 days'", "seen_at = now(), created_at = now() - interval '31 days'"]
    {
        let update = format!("UPDATE sessions SET {age}");
        sqlx::query(sqlx::AssertSqlSafe(update)).execute(&mut server.engines.postgres().await).await.unwrap();
        let refused = browser.send(Method::GET, "/app/api/session", None).await;
        assert_eq!((refused.status.as_u16(), &refused.body["code"]), (401, &json!("UNAUTHORIZED")), "{age}");
    }
}

#[tokio::test]
async fn sign_in_replaces_a_planted_session_token() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let mut browser = Browser::new(&server);
    // An attacker has planted a token in the browser: an invented one, then one of the attacker's session.
    for planted in [format!("hopline_session={}", "A".repeat(43)), owner.cookie.clone().unwrap()] {
        browser.cookie = Some(planted.clone());
        assert_eq!(browser.sign_in("ada@example.com", PASSWORD).await.status, 200);
        assert_ne!(browser.cookie, Some(planted.clone()));
        let mut attacker = browser.clone();
        attacker.cookie = Some(planted);
        assert_eq!(attacker.send(Method::GET, "/app/api/session", None).await.status, 401);
    }
    // A database copy is not enough to sign in.
    let digests: Vec<Vec<u8>> = sqlx::query_scalar("SELECT token_sha256 FROM sessions")
        .fetch_all(&mut server.engines.postgres().await)
        .await
        .unwrap();
    assert_eq!(digests.len(), 2, "one of each sign-in, and none of the planted ones");
    assert!(digests.iter().all(|digest| digest.len() == 32));
}

#[tokio::test]
async fn a_cookie_is_secure_behind_tls() {
    let engines = tests::engines::isolated().await;
    let mut behind_proxy = config(&engines);
    behind_proxy.trusted_proxies = "127.0.0.0/8".parse::<Cidrs>().unwrap();
    let server = Server::serve(engines, behind_proxy).await.with_account("free").await;
    Browser::set_up(&server).await;
    let mut at_url = config(&server.engines);
    at_url.dashboard_url = Some("https://dash.example".parse().unwrap());
    let at_url = Server::serve(server.engines.clone(), at_url).await;
    let plain = Server::serve(server.engines.clone(), config(&server.engines)).await;
    let body = json!({"email": "ada@example.com", "password": PASSWORD});
    for (server, origin, proto, is_secure) in [
        (&server, None, "https", true),
        (&server, None, "http", false),
        (&plain, None, "https", false),
        (&at_url, Some("https://dash.example"), "http", true),
    ] {
        let mut request = server
            .request(Method::POST, "/app/api/sign-in")
            .header("x-requested-with", "hopline")
            .header("x-forwarded-proto", proto)
            .json(&body);
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        let signed_in = answer(request).await;
        assert_eq!(signed_in.status, 200, "{}", signed_in.body);
        let cookie = signed_in.headers["set-cookie"].to_str().unwrap();
        assert_eq!(cookie.ends_with("; Secure"), is_secure, "{cookie}");
        let is_tls = is_secure && proto == "https";
        assert_eq!(signed_in.headers.contains_key("strict-transport-security"), is_tls, "{proto}");
    }
    let elsewhere = Browser::new(&at_url).sign_in("ada@example.com", PASSWORD).await;
    assert_eq!(elsewhere.status, 403, "its origin is not the dashboard's URL");
}

#[tokio::test]
async fn only_owners_change_members() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let drawn = owner
        .send(
            Method::POST,
            "/app/api/members",
            Some(json!({"email": "grace@example.com", "name": "Grace", "role": "editor"})),
        )
        .await;
    assert_eq!(drawn.status, 201, "{}", drawn.body);
    let mut grace = Browser::new(&server);
    assert_eq!(grace.sign_in("grace@example.com", &text(&drawn.body["password"])).await.status, 200);
    let taken = owner
        .send(Method::POST, "/app/api/members", Some(json!({"email": "GRACE@example.com", "role": "editor"})))
        .await;
    assert_eq!((taken.status.as_u16(), &taken.body["code"]), (409, &json!("EMAIL_TAKEN")));
    for (field, body) in [
        ("email", json!({"email": "grace", "role": "editor"})),
        ("password", json!({"email": "x@example.com", "role": "editor", "password": "short"})),
        ("role", json!({"email": "x@example.com", "role": "king"})),
    ] {
        let refused = owner.send(Method::POST, "/app/api/members", Some(body)).await;
        assert_eq!((refused.status.as_u16(), &refused.body["details"][0]["field"]), (400, &json!(field)));
    }

    let listed = grace.send(Method::GET, "/app/api/members", None).await.body;
    let emails: Vec<&str> =
        listed["members"].as_array().unwrap().iter().map(|one| one["email"].as_str().unwrap()).collect();
    assert_eq!(emails, ["ada@example.com", "grace@example.com"]);
    let (ada, id) = (text(&listed["members"][0]["id"]), text(&drawn.body["id"]));
    for (method, path, body) in [
        (Method::POST, "/app/api/members".to_owned(), json!({"email": "x@example.com", "role": "owner"})),
        (Method::DELETE, format!("/app/api/members/{ada}"), json!({})),
        (Method::POST, "/app/api/workspaces".to_owned(), json!({"name": "Mine", "kind": "personal"})),
    ] {
        let refused = grace.send(method, &path, Some(body)).await;
        assert_eq!((refused.status.as_u16(), &refused.body["code"]), (403, &json!("FORBIDDEN")), "{path}");
    }
    let made = grace.post("/links", json!({"name": "hers", "destination": "https://example.com"})).await;
    assert_eq!((made.status.as_u16(), &made.body["user_id"]), (201, &json!(id)));

    let key = grace.post("/keys", json!({"name": "hers", "scope": "read,write"})).await.body;

    // The session of a removed member ends with the removal; the link stays.
    let path = format!("/app/api/members/{id}?revoke_keys=false");
    assert_eq!(owner.send(Method::DELETE, &path, None).await.status, 204);
    for path in ["/app/api/session".to_owned(), grace.path("/links")] {
        assert_eq!(grace.send(Method::GET, &path, None).await.status, 401);
    }
    assert_eq!(grace.sign_in("grace@example.com", &text(&drawn.body["password"])).await.status, 401);
    assert_eq!(owner.get("/links").await.body["links"][0]["id"], made.body["id"]);
    let gone = owner.send(Method::DELETE, &format!("/app/api/members/{id}"), None).await;
    assert_eq!(gone.status, 404);
    // A key belongs to its workspace: the owner has kept it, and owners can see and revoke it.
    assert_eq!(server.send_as(&text(&key["key"]), Method::GET, "/api/links", None).await.status, 200);
    let listed = owner.get("/keys").await.body;
    let kept = listed["keys"].as_array().unwrap().iter().find(|one| one["id"] == key["id"]).unwrap();
    assert_eq!((&kept["name"], &kept["revoked_at"]), (&json!("hers"), &json!(null)));
    let made_by: String =
        sqlx::query_scalar("SELECT actor FROM audit_trail WHERE action = 'create-key' AND subject = $1")
            .bind(text(&key["id"]))
            .fetch_one(&mut server.engines.postgres().await)
            .await
            .unwrap();
    assert!(made_by.contains(&id), "{made_by}");
    let last = owner.send(Method::DELETE, &format!("/app/api/members/{ada}"), None).await;
    assert_eq!((last.status.as_u16(), &last.body["code"]), (403, &json!("FORBIDDEN")), "an owner must stay");
    let kept: (Option<String>, String, Option<String>) =
        sqlx::query_as("SELECT email, name, password_hash FROM users WHERE removed_at IS NOT NULL")
            .fetch_one(&mut server.engines.postgres().await)
            .await
            .unwrap();
    assert_eq!(kept, (None, String::new(), None), "no personal data of a removed member stays");
}

#[tokio::test]
async fn a_member_sees_the_accounts_workspaces() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let other = owner.of_other_account(&server, "eve@example.com", "free").await;
    let body = json!({"name": " Marketing ", "kind": "organization"});
    let created = owner.send(Method::POST, "/app/api/workspaces", Some(body)).await;
    assert_eq!((created.status.as_u16(), &created.body["name"]), (201, &json!("Marketing")));
    let listed = owner.send(Method::GET, "/app/api/workspaces", None).await.body;
    assert_eq!(listed["workspaces"].as_array().unwrap().len(), 2);
    assert_eq!(listed["workspaces"][1], created.body);
    let theirs = other.send(Method::GET, "/app/api/workspaces", None).await.body;
    assert_eq!(theirs["workspaces"].as_array().unwrap().len(), 1);
    assert_eq!(theirs["workspaces"][0]["id"], json!(other.workspace));
    let removed = other.send(Method::GET, "/app/api/members", None).await.body;
    assert_eq!(removed["members"].as_array().unwrap().len(), 1, "no member of another account: {removed}");
}

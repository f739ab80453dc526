//! The dashboard's page, also in builds without it.

use reqwest::Method;

use crate::server::{Server, answer};

#[tokio::test]
async fn the_root_redirects_to_the_dashboard() {
    let server = Server::start().await;
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    for method in [Method::GET, Method::HEAD] {
        let answer = client.request(method, &server.url).send().await.unwrap();
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()["location"]),
            (303, &"/app".parse().unwrap())
        );
        assert!(!answer.headers().contains_key("x-ratelimit-limit"), "no rate limit");
    }
    let posted = answer(server.request(Method::POST, "/")).await;
    assert_eq!((posted.status.as_u16(), posted.body["code"].as_str()), (405, Some("METHOD_NOT_ALLOWED")));
}

#[tokio::test]
async fn the_page_is_at_every_path_below_app_except_the_api() {
    let server = Server::start().await;
    for path in ["/app", "/app/", "/app/links", "/app/w/wsp_1/links/lnk_1", "/app/apis"] {
        for method in [Method::GET, Method::HEAD] {
            let answer = server.request(method, path).send().await.unwrap();
            assert!(matches!(answer.status().as_u16(), 200 | 404), "{path}");
            let policy = answer.headers()["content-security-policy"].to_str().unwrap();
            assert!(policy.starts_with("default-src 'none'; script-src 'self'"), "{policy}");
            assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
            assert!(!answer.headers().contains_key("access-control-allow-origin"), "for no other site");
            assert!(!answer.headers().contains_key("x-ratelimit-limit"), "no rate limit for files");
        }
    }
    let missing = server.request(Method::GET, "/app/assets/none.js").send().await.unwrap();
    assert_eq!(missing.status(), 404);
    for path in ["/app/api", "/app/api/", "/app/api/none", "/app/api/workspaces/wsp_1/none", "/apps"] {
        let refused = answer(server.request(Method::GET, path)).await;
        assert_eq!(refused.status, 404, "{path}");
        assert_eq!(refused.body["code"], "NOT_FOUND", "{path}");
    }
    let wrong = answer(server.request(Method::DELETE, "/app/api/session")).await;
    assert_eq!((wrong.status.as_u16(), wrong.body["code"].as_str()), (405, Some("METHOD_NOT_ALLOWED")));
}

//! QR codes over HTTP.

use reqwest::Method;
use serde_json::json;

use crate::server::{Server, text};

#[tokio::test]
async fn a_qr_code_has_the_requested_size() {
    let server = Server::start().await;
    let link = server.create_link(json!({"name": "a", "destination": "https://example.com"})).await;
    let path = format!("/api/v1/links/{}/qr", text(&link["id"]));
    for (query, media_type, begins) in [
        ("", "image/svg+xml", &b"<svg "[..]),
        ("?format=svg&size=64", "image/svg+xml", b"<svg "),
        ("?format=png", "image/png", b"\x89PNG\r\n"),
        ("?format=png&size=2048", "image/png", b"\x89PNG\r\n"),
    ] {
        let request = server.request(Method::GET, &format!("{path}{query}")).bearer_auth(&server.key);
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], media_type);
        assert!(answer.bytes().await.unwrap().starts_with(begins), "{query}");
    }
    for (query, field) in [
        ("?format=gif", "format"),
        ("?format=", "format"),
        ("?size=63", "size"),
        ("?size=2049", "size"),
        ("?size=big", "size"),
        ("?size=64&size=65", "size"),
        ("?colour=red", "colour"),
    ] {
        let refused = server.send(Method::GET, &format!("{path}{query}"), None).await;
        assert_eq!(refused.status, 400, "{query}");
        assert_eq!(refused.body["details"][0]["field"], field, "{query}");
    }
    let stranger = "/api/v1/links/lnk_0000000000000000000000/qr";
    assert_eq!(server.send(Method::GET, stranger, None).await.status, 404);
}

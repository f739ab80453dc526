//! URLs of engines.

use reqwest::Url;

/// The password of every user of the engines that tests start.
pub(super) const PASSWORD: &str = "hopline";

/// Returns a URL for this user.
pub(super) fn with_user(url: &str, user: Option<String>) -> String {
    let (Ok(mut with), Some(user)) = (Url::parse(url), user) else { return url.to_owned() };
    // Neither fails on a URL with a host.
    let _ = with.set_username(&user);
    let _ = with.set_password(Some(PASSWORD));
    with.into()
}

/// Returns `host:port` of a URL.
///
/// # Panics
/// When it is not a URL with a host and a port.
pub fn host_of(url: &str) -> String {
    let url = Url::parse(url).unwrap();
    format!("{}:{}", url.host_str().unwrap(), url.port_or_known_default().unwrap())
}

pub(super) fn database_of(url: &str) -> String {
    Url::parse(url).map_or_else(|_| String::new(), |url| url.path().trim_start_matches('/').to_owned())
}

pub(super) fn with_database(url: &str, database: &str) -> String {
    let mut url = Url::parse(url).unwrap();
    url.set_path(database);
    url.to_string()
}

/// Returns the URL that `./dev test` or the environment gives.
pub(super) fn engine(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run the tests with ./dev test, which starts the engines")
    })
}

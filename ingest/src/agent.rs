//! What a request says about the software that made it: class, device, browser, operating system.
//!
//! A small rule table that knows the common cases and leaves the rest open. Full lists of crawlers and browsers
//! are data files that replace these rules; the User-Agent is stored with each click, so that classes can be
//! recomputed then.

use http::HeaderMap;
use schemas::message::Class;

/// Longest kept part of a header that says what a request is for.
const PURPOSE_BYTES: usize = 64;

/// Headers by which browsers mark a request that no person made yet.
const PURPOSE_HEADERS: [&str; 4] = ["sec-purpose", "purpose", "x-purpose", "x-moz"];

/// Fetchers that show a destination to a person: link previews in chats and feeds. Lower case.
const PREVIEW: [&str; 20] = [
    "facebookexternalhit",
    "facebookcatalog",
    "facebot",
    "twitterbot",
    "slackbot",
    "slack-imgproxy",
    "telegrambot",
    "discordbot",
    "linkedinbot",
    "skypeuripreview",
    "microsoftpreview",
    "iframely",
    "embedly",
    "redditbot",
    "pinterestbot",
    "vkshare",
    "mattermost",
    "mastodon/",
    "cardyb",
    "snap url preview",
];

/// Words of crawlers, monitors, libraries and command-line clients. Lower case.
const BOT: [&str; 26] = [
    "bot",
    "crawl",
    "spider",
    "slurp",
    "scrape",
    "headless",
    "phantomjs",
    "lighthouse",
    "monitor",
    "uptime",
    "pingdom",
    "curl/",
    "wget/",
    "httpie",
    "postman",
    "python",
    "go-http-client",
    "java/",
    "okhttp",
    "libwww",
    "node-fetch",
    "axios/",
    "mediapartners-google",
    "google-read-aloud",
    "bingpreview",
    "archive.org",
];

/// Families of browsers by a token of their User-Agent; the first that fits wins, because most also name the
/// browsers that they descend from.
const BROWSERS: [(&str, &str); 14] = [
    ("edg/", "Edge"),
    ("edga/", "Edge"),
    ("edgios/", "Edge"),
    ("edge/", "Edge"),
    ("opr/", "Opera"),
    ("opera", "Opera"),
    ("samsungbrowser/", "Samsung Internet"),
    ("firefox/", "Firefox"),
    ("fxios/", "Firefox"),
    ("crios/", "Chrome"),
    ("chrome/", "Chrome"),
    ("chromium/", "Chrome"),
    ("version/", "Safari"),
    ("trident/", "Internet Explorer"),
];

/// Families of operating systems; the first that fits wins.
const SYSTEMS: [(&str, &str); 9] = [
    ("windows", "Windows"),
    ("iphone", "iOS"),
    ("ipad", "iOS"),
    ("ipod", "iOS"),
    ("android", "Android"),
    ("cros ", "ChromeOS"),
    ("mac os x", "macOS"),
    ("macintosh", "macOS"),
    ("linux", "Linux"),
];

/// What made a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agent {
    /// Whether a person sees the destination.
    pub class: Class,
    /// `desktop`, `mobile`, `tablet` or `other`.
    pub device_type: &'static str,
    /// Family of the browser, when known.
    pub browser: Option<&'static str>,
    /// Family of the operating system, when known.
    pub os: Option<&'static str>,
    /// What the request said it was for.
    pub purpose: Option<String>,
}

impl Agent {
    /// Reads the headers of a request; `user_agent` is the text of its User-Agent, if it has one.
    pub fn read(headers: &HeaderMap, user_agent: Option<&str>) -> Self {
        let purpose = purpose(headers);
        let text = user_agent.unwrap_or_default().to_ascii_lowercase();
        Self {
            class: class(&text, purpose.as_deref()),
            device_type: device_type(&text),
            browser: family(&BROWSERS, &text),
            os: family(&SYSTEMS, &text),
            purpose,
        }
    }
}

/// Returns the first purpose header, cut, as text.
fn purpose(headers: &HeaderMap) -> Option<String> {
    let value = PURPOSE_HEADERS.iter().find_map(|name| headers.get(*name))?.as_bytes();
    let cut = &value[..value.len().min(PURPOSE_BYTES)];
    Some(String::from_utf8_lossy(cut).trim().to_owned()).filter(|text| !text.is_empty())
}

fn class(user_agent: &str, purpose: Option<&str>) -> Class {
    let ahead = purpose.is_some_and(|purpose| {
        let purpose = purpose.to_ascii_lowercase();
        ["prefetch", "prerender", "preview"].iter().any(|word| purpose.contains(word))
    });
    if ahead || user_agent.starts_with("whatsapp/") || contains_any(user_agent, &PREVIEW) {
        return Class::Preview;
    }
    // Every browser has called itself Mozilla since the nineties, but for the old Opera.
    let browser_like = user_agent.starts_with("mozilla/") || user_agent.starts_with("opera/");
    // Cubot is a maker of phones.
    if !browser_like || contains_any(&user_agent.replace("cubot", ""), &BOT) {
        return Class::Bot;
    }
    Class::Human
}

fn device_type(user_agent: &str) -> &'static str {
    let has = |word| user_agent.contains(word);
    if has("ipad") || has("tablet") || (has("android") && !has("mobile")) {
        "tablet"
    } else if has("mobile") || has("iphone") || has("ipod") {
        "mobile"
    } else if has("windows nt") || has("macintosh") || has("x11") || has("cros ") {
        "desktop"
    } else {
        "other"
    }
}

fn family(families: &[(&str, &'static str)], user_agent: &str) -> Option<&'static str> {
    families.iter().find(|(token, _)| user_agent.contains(token)).map(|(_, family)| *family)
}

fn contains_any(text: &str, words: &[&str]) -> bool {
    words.iter().any(|word| text.contains(word))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const CHROME: &str = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36";

    fn read(user_agent: &str) -> Agent {
        Agent::read(&HeaderMap::new(), Some(user_agent))
    }

    #[test]
    fn browsers_are_people() {
        for (user_agent, device_type, browser, os) in [
            (CHROME, "desktop", Some("Chrome"), Some("Windows")),
            (
                "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36 Edg/140.0.0.0",
                "desktop",
                Some("Edge"),
                Some("Windows"),
            ),
            (
                "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
                "desktop",
                Some("Firefox"),
                Some("Linux"),
            ),
            (
                "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.0 Mobile/15E148 Safari/604.1",
                "mobile",
                Some("Safari"),
                Some("iOS"),
            ),
            (
                "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.0 Safari/605.1.15",
                "desktop",
                Some("Safari"),
                Some("macOS"),
            ),
            (
                "Mozilla/5.0 (Linux; Android 14; SM-X200) AppleWebKit/537.36 (KHTML, like Gecko) SamsungBrowser/25.0 Chrome/121.0.0.0 Safari/537.36",
                "tablet",
                Some("Samsung Internet"),
                Some("Android"),
            ),
            (
                "Mozilla/5.0 (Linux; Android 9; CUBOT_X18_Plus) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0.0.0 Mobile Safari/537.36",
                "mobile",
                Some("Chrome"),
                Some("Android"),
            ),
            ("Mozilla/5.0", "other", None, None),
        ] {
            let expected = Agent { class: Class::Human, device_type, browser, os, purpose: None };
            assert_eq!(read(user_agent), expected, "{user_agent}");
        }
    }

    #[test]
    fn programs_are_bots() {
        assert_eq!(Agent::read(&HeaderMap::new(), None).class, Class::Bot);
        for user_agent in [
            "",
            "curl/8.5.0",
            "Wget/1.21",
            "python-requests/2.31",
            "Go-http-client/2.0",
            "something-of-ours/1.0",
            "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
            "Mozilla/5.0 (compatible; bingbot/2.0)",
            "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 HeadlessChrome/140.0.0.0 Safari/537.36",
        ] {
            assert_eq!(read(user_agent).class, Class::Bot, "{user_agent}");
        }
    }

    #[test]
    fn unfurlers_are_previews() {
        for user_agent in [
            "facebookexternalhit/1.1 (+http://www.facebook.com/externalhit_uatext.php)",
            "Slackbot-LinkExpanding 1.0 (+https://api.slack.com/robots)",
            "WhatsApp/2.23.20.0 A",
            "Mozilla/5.0 (compatible; Discordbot/2.0; +https://discordapp.com)",
            "TelegramBot (like TwitterBot)",
        ] {
            assert_eq!(read(user_agent).class, Class::Preview, "{user_agent}");
        }
    }

    #[test]
    fn a_request_ahead_of_a_person_is_a_preview_and_keeps_its_purpose() {
        for (name, value) in [
            ("sec-purpose", "prefetch;prerender"),
            ("purpose", "prefetch"),
            ("x-purpose", "preview"),
            ("x-moz", "prefetch"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            let agent = Agent::read(&headers, Some(CHROME));
            assert_eq!((agent.class, agent.purpose.as_deref()), (Class::Preview, Some(value)), "{name}");
        }
    }

    #[test]
    fn a_purpose_that_is_not_text_is_kept_as_well_as_it_can_be() {
        let mut headers = HeaderMap::new();
        headers.insert("purpose", HeaderValue::from_bytes(&[b'\xff'; 300]).unwrap());
        let agent = Agent::read(&headers, Some(CHROME));
        assert_eq!(agent.class, Class::Human);
        assert_eq!(agent.purpose.unwrap().chars().count(), PURPOSE_BYTES);
    }
}

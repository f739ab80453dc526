//! The built-in table, which covers common User-Agents. All texts are in lower case.

use super::classification::Class;

/// Fetchers of link previews for chats and feeds.
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
    "cardyb",
    "snap url preview",
    "snapurlpreview",
];

/// Apps that fetch previews under their own names; the User-Agent of their embedded browsers begins like any browser's.
const APPS: [&str; 6] = ["bluesky/", "mastodon/", "notion/", "tumblr/", "viber", "whatsapp/"];

/// Words of crawlers, monitors, libraries and command-line clients. Many crawlers, but no browsers, include a URL.
const BOT: [&str; 32] = [
    "://",
    "www.",
    "bot",
    "crawl",
    "spider",
    "slurp",
    "scrape",
    "scan",
    "fetch",
    "archiv",
    "validat",
    "inspect",
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
];

/// Families of browsers by a token of their User-Agent. The first match wins, because most User-Agents also contain
/// the tokens of older browsers.
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

/// Families of operating systems; the first match wins.
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

pub(super) fn class(text: &str) -> Class {
    // All browsers except old versions of Opera begin with Mozilla.
    let browser_like = text.starts_with("mozilla/") || text.starts_with("opera/");
    if contains_any(text, &PREVIEW) || (!browser_like && contains_any(text, &APPS)) {
        return Class::Preview;
    }
    // Cubot is a phone manufacturer.
    if !browser_like || contains_any(&text.replace("cubot", ""), &BOT) {
        return Class::Bot;
    }
    Class::Human
}

pub(super) fn device_type(text: &str) -> &'static str {
    let has = |word| text.contains(word);
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

pub(super) fn browser(text: &str) -> Option<&'static str> {
    family(&BROWSERS, text)
}

pub(super) fn os(text: &str) -> Option<&'static str> {
    family(&SYSTEMS, text)
}

fn family(families: &[(&str, &'static str)], text: &str) -> Option<&'static str> {
    families.iter().find(|(token, _)| text.contains(token)).map(|(_, family)| *family)
}

fn contains_any(text: &str, words: &[&str]) -> bool {
    words.iter().any(|word| text.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(user_agent: &str) -> (Class, &'static str, Option<&'static str>, Option<&'static str>) {
        let text = user_agent.to_ascii_lowercase();
        (class(&text), device_type(&text), browser(&text), os(&text))
    }

    #[test]
    fn browsers_are_human() {
        for (user_agent, device_type, browser, os) in [
            (
                "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, \
                    like Gecko) Chrome/140.0.0.0 Safari/537.36",
                "desktop",
                Some("Chrome"),
                Some("Windows"),
            ),
            (
                "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 \
                    Safari/537.36 Edg/140.0.0.0",
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
                "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) \
                    Version/18.0 Mobile/15E148 Safari/604.1",
                "mobile",
                Some("Safari"),
                Some("iOS"),
            ),
            (
                "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, \
                    like Gecko) Version/18.0 Safari/605.1.15",
                "desktop",
                Some("Safari"),
                Some("macOS"),
            ),
            (
                "Mozilla/5.0 (Linux; Android 14; SM-X200) AppleWebKit/537.36 (KHTML, like Gecko) SamsungBrowser/25.0 \
                    Chrome/121.0.0.0 Safari/537.36",
                "tablet",
                Some("Samsung Internet"),
                Some("Android"),
            ),
            (
                "Mozilla/5.0 (Linux; Android 9; CUBOT_X18_Plus) AppleWebKit/537.36 (KHTML, like Gecko) \
                    Chrome/120.0.0.0 Mobile Safari/537.36",
                "mobile",
                Some("Chrome"),
                Some("Android"),
            ),
            ("Mozilla/5.0", "other", None, None),
        ] {
            let expected = (Class::Human, device_type, browser, os);
            assert_eq!(read(user_agent), expected, "{user_agent}");
        }
    }

    #[test]
    fn programs_are_bots() {
        for user_agent in [
            "",
            "curl/8.5.0",
            "Wget/1.21",
            "python-requests/2.31",
            "Go-http-client/2.0",
            "something-of-ours/1.0",
            "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
            "Mozilla/5.0 (compatible; bingbot/2.0)",
            "Mozilla/5.0 (compatible; Something; +https://something.example/about)",
            "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 HeadlessChrome/140.0.0.0 Safari/537.36",
        ] {
            assert_eq!(read(user_agent).0, Class::Bot, "{user_agent}");
        }
    }

    #[test]
    fn preview_fetchers_are_previews() {
        for user_agent in [
            "facebookexternalhit/1.1 (+http://www.facebook.com/externalhit_uatext.php)",
            "Slackbot-LinkExpanding 1.0 (+https://api.slack.com/robots)",
            "WhatsApp/2.23.20.0 A",
            "Mozilla/5.0 (compatible; Discordbot/2.0; +https://discordapp.com)",
            "TelegramBot (like TwitterBot)",
        ] {
            assert_eq!(read(user_agent).0, Class::Preview, "{user_agent}");
        }
    }
}

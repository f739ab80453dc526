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

/// Marks of crawlers, monitors, libraries and command-line clients. Many crawlers, but no browsers, include a URL.
/// `-User/` ends the names of assistants that fetch a page for a person.
const BOT: [&str; 21] = [
    "://",
    "www.",
    "headless",
    "phantomjs",
    "lighthouse",
    "uptime",
    "pingdom",
    "curl/",
    "wget/",
    "httpie",
    "postman",
    "python",
    "go-http-client",
    "okhttp",
    "libwww",
    "axios/",
    "mediapartners-google",
    "google-read-aloud",
    "bingpreview",
    "google-inspectiontool",
    "-user/",
];

/// Words of crawlers and monitors that also occur within other words, such as `Abbott`, `Scandic` or `CamScanner`. They
/// count at the end of a word only.
const BOT_ENDINGS: [&str; 17] = [
    "bot",
    "crawl",
    "crawler",
    "spider",
    "slurp",
    "scrape",
    "scraper",
    "scan",
    "fetch",
    "fetcher",
    "archive",
    "archiver",
    "validator",
    "inspect",
    "inspector",
    "monitor",
    "monitoring",
];

/// Engines and browsers. A User-Agent that only begins like a browser's has none of them.
const ENGINES: [&str; 15] = [
    "webkit", "gecko", "khtml", "trident/", "presto/", "goanna/", "msie", "opera/", "opera ", "firefox/",
    "chrome/", "safari/", "netfront", "ucweb", "browser/",
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

/// Returns the class of a text without its model; see [`super::model`].
pub(super) fn class(text: &str) -> Class {
    // All browsers except old versions of Opera begin with Mozilla.
    let browser_like = text.starts_with("mozilla/") || text.starts_with("opera/");
    if contains_any(text, &PREVIEW) || (!browser_like && contains_any(text, &APPS)) {
        return Class::Preview;
    }
    let is_bot = !browser_like
        || !contains_any(text, &ENGINES)
        || contains_any(text, &BOT)
        || BOT_ENDINGS.iter().any(|ending| ends_a_word(text, ending));
    if is_bot { Class::Bot } else { Class::Human }
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

/// Returns whether a word of the text ends with `ending`.
fn ends_a_word(text: &str, ending: &str) -> bool {
    text.match_indices(ending).any(|(at, _)| {
        let is_end = !text[at + ending.len()..].starts_with(|next: char| next.is_ascii_lowercase());
        // Cubot makes phones, and apps also name the maker behind the browser.
        is_end && !text[..at].ends_with("cu")
    })
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
            ("Mozilla/5.0 Firefox/140.0", "other", Some("Firefox"), None),
            ("Mozilla/5.0 (Java; U; en-us; X) UCBrowser8.3/69/UCWEB Mobile", "mobile", None, None),
        ] {
            let expected = (Class::Human, device_type, browser, os);
            assert_eq!(read(user_agent), expected, "{user_agent}");
        }
    }

    #[test]
    fn marks_count_only_at_the_end_of_a_word() {
        const BROWSER: &str = "Mozilla/5.0 (Linux; Android 14; K) AppleWebKit/537.36 (KHTML, like Gecko) \
            Chrome/140.0.0.0 Mobile Safari/537.36";
        for (mark, is_bot) in [
            ("Bot", true),
            ("Somebot/1.0", true),
            ("some_bot2", true),
            ("SomeSpider;", true),
            ("SomeCrawler", true),
            ("(compatible; Some-Monitor)", true),
            ("(compatible; Some-User/1.0)", true),
            ("Talbots/1.0", false),
            ("Abbott/1.0", false),
            ("Botany/1.0", false),
            ("CamScanner/1.0", false),
            ("Scandic/1.0", false),
            ("App/1.0 (CUBOT; CUBOT_X30)", false),
            ("A10-V1.0-user-20101018", false),
        ] {
            let class = read(&format!("{BROWSER} {mark}")).0;
            assert_eq!(class, if is_bot { Class::Bot } else { Class::Human }, "{mark}");
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
            "Mozilla/5.0",
            "Mozilla/5.0 (compatible; Some URL Defense)",
            "Mozilla/5.0 (compatible; Some Operations)",
            "Mozilla/5.0 (compatible; Some Secure Browser)",
            "Mozilla/5.0 (Linux; Android 14; K)",
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

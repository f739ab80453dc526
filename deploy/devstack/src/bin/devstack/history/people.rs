//! The visitors: countries, devices, browsers, bots and previews.

use super::dice::Dice;

/// A User-Agent and the fields that the edge derives from it.
pub(crate) struct Agent {
    pub(crate) user_agent: &'static str,
    pub(crate) device_type: &'static str,
    pub(crate) browser: Option<&'static str>,
    pub(crate) os: Option<&'static str>,
    pub(super) share: u64,
}

/// A visitor.
#[derive(Clone, Copy)]
pub(super) struct Person {
    pub(super) visitor: u64,
    pub(super) country: &'static str,
    pub(super) agent: &'static Agent,
}

impl Person {
    pub(super) fn new(dice: &mut Dice) -> Self {
        let country = dice.choose(&COUNTRIES, |(_, share)| *share).unwrap_or(&COUNTRIES[0]);
        let agent = dice.choose(&BROWSERS, |agent| agent.share).unwrap_or(&BROWSERS[0]);
        Self { visitor: dice.next(), country: country.0, agent }
    }
}

const COUNTRIES: [(&str, u64); 18] = [
    ("US", 340),
    ("GB", 140),
    ("DE", 120),
    ("FR", 70),
    ("CA", 68),
    ("NL", 45),
    ("AU", 44),
    ("ES", 32),
    ("IN", 30),
    ("BR", 24),
    ("SE", 18),
    ("IT", 17),
    ("JP", 15),
    ("PL", 12),
    ("CH", 10),
    ("IE", 8),
    ("MX", 5),
    ("NZ", 4),
];

const fn browser(
    user_agent: &'static str,
    device_type: &'static str,
    browser: &'static str,
    os: &'static str,
    share: u64,
) -> Agent {
    Agent { user_agent, device_type, browser: Some(browser), os: Some(os), share }
}

const fn program(user_agent: &'static str, browser: Option<&'static str>, share: u64) -> Agent {
    Agent { user_agent, device_type: "other", browser, os: None, share }
}

const BROWSERS: [Agent; 10] = [
    browser(
        "Mozilla/5.0 (iPhone; CPU iPhone OS 18_6 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.6 Mobile/15E148 Safari/604.1",
        "mobile",
        "Safari",
        "iOS",
        290,
    ),
    browser(
        "Mozilla/5.0 (Linux; Android 10; K) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Mobile Safari/537.36",
        "mobile",
        "Chrome",
        "Android",
        230,
    ),
    browser(
        "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36",
        "desktop",
        "Chrome",
        "Windows",
        170,
    ),
    browser(
        "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.6 Safari/605.1.15",
        "desktop",
        "Safari",
        "macOS",
        90,
    ),
    browser(
        "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36",
        "desktop",
        "Chrome",
        "macOS",
        70,
    ),
    browser(
        "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36 Edg/140.0.0.0",
        "desktop",
        "Edge",
        "Windows",
        60,
    ),
    browser(
        "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:142.0) Gecko/20100101 Firefox/142.0",
        "desktop",
        "Firefox",
        "Windows",
        40,
    ),
    browser(
        "Mozilla/5.0 (Linux; Android 14; SAMSUNG SM-S918B) AppleWebKit/537.36 (KHTML, like Gecko) SamsungBrowser/28.0 Chrome/130.0.0.0 Mobile Safari/537.36",
        "mobile",
        "Samsung Internet",
        "Android",
        35,
    ),
    browser(
        "Mozilla/5.0 (Linux; Android 13; SM-X700) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36",
        "tablet",
        "Chrome",
        "Android",
        30,
    ),
    browser(
        "Mozilla/5.0 (X11; Linux x86_64; rv:142.0) Gecko/20100101 Firefox/142.0",
        "desktop",
        "Firefox",
        "Linux",
        15,
    ),
];

pub(super) const BOTS: &[Agent] = &[
    program("Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)", None, 5),
    program("Mozilla/5.0 (compatible; bingbot/2.0; +http://www.bing.com/bingbot.htm)", None, 3),
    program("curl/8.14.1", None, 1),
];

pub(super) const PREVIEWS: &[Agent] = &[
    program("WhatsApp/2.25.20.79 A", None, 5),
    program("Slackbot-LinkExpanding 1.0 (+https://api.slack.com/robots)", None, 3),
    program(
        "facebookexternalhit/1.1 (+http://www.facebook.com/externalhit_uatext.php)",
        Some("FacebookBot"),
        3,
    ),
];

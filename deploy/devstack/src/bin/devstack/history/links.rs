//! The links of a small coffee shop.

/// How many days of clicks there are: a month, and one to compare it with.
pub(crate) const DAYS: i64 = 60;

/// A link and its traffic.
pub(crate) struct Link {
    pub(crate) slug: &'static str,
    pub(crate) name: &'static str,
    pub(crate) destination: &'static str,
    pub(crate) tags: &'static [&'static str],
    /// Clicks of people on an average day.
    pub(super) per_day: f64,
    pub(super) age_days: i64,
    pub(super) trend: Trend,
    pub(super) sources: &'static [Source],
    /// How many of a thousand people's clicks convert.
    pub(super) converts_per_mille: u64,
}

/// How the traffic of a link changes over time.
pub(super) enum Trend {
    Steady,
    Growing,
    /// Most clicks come in the first days.
    Launch,
}

impl Trend {
    /// Returns the traffic so many hours after the link's creation; 1 is the average.
    pub(super) fn at(&self, hours: i64) -> f64 {
        let days = hours as f64 / 24.0;
        match self {
            Self::Steady => 1.0,
            Self::Growing => 0.65 + days / 85.0,
            Self::Launch => 0.25 + 5.0 * (-days / 2.5).exp(),
        }
    }
}

/// A source of clicks.
pub(crate) struct Source {
    pub(crate) referrer: Option<&'static str>,
    /// Source, medium and campaign.
    pub(crate) utm: Option<[&'static str; 3]>,
    pub(super) share: u64,
}

const fn from(referrer: &'static str, share: u64) -> Source {
    Source { referrer: Some(referrer), utm: None, share }
}

const fn direct(share: u64) -> Source {
    Source { referrer: None, utm: None, share }
}

const fn campaign(referrer: Option<&'static str>, utm: [&'static str; 3], share: u64) -> Source {
    Source { referrer, utm: Some(utm), share }
}

pub(crate) const LINKS: [Link; 12] = [
    Link {
        slug: "picks",
        name: "Newsletter: monthly picks",
        destination: "https://example.com/picks",
        tags: &["newsletter"],
        per_day: 84.0,
        age_days: DAYS,
        trend: Trend::Growing,
        sources: &[
            campaign(None, ["newsletter", "email", "monthly-picks"], 70),
            campaign(Some("mail.google.com"), ["newsletter", "email", "monthly-picks"], 22),
            direct(8),
        ],
        converts_per_mille: 18,
    },
    Link {
        slug: "pour-over",
        name: "Launch: pour-over kit",
        destination: "https://example.com/products/pour-over-kit",
        tags: &["launch", "paid"],
        per_day: 130.0,
        age_days: 16,
        trend: Trend::Launch,
        sources: &[
            campaign(Some("instagram.com"), ["instagram", "paid-social", "pour-over-launch"], 44),
            campaign(Some("google.com"), ["google", "cpc", "pour-over-launch"], 26),
            campaign(None, ["newsletter", "email", "pour-over-launch"], 20),
            from("reddit.com", 10),
        ],
        converts_per_mille: 38,
    },
    Link {
        slug: "bio",
        name: "Instagram bio",
        destination: "https://example.com/shop",
        tags: &["social"],
        per_day: 96.0,
        age_days: DAYS,
        trend: Trend::Growing,
        sources: &[from("instagram.com", 88), direct(12)],
        converts_per_mille: 9,
    },
    Link {
        slug: "ep42",
        name: "Podcast ep. 42: Slow mornings",
        destination: "https://example.com/podcast/42",
        tags: &["podcast"],
        per_day: 38.0,
        age_days: 23,
        trend: Trend::Launch,
        sources: &[direct(62), from("podcasts.apple.com", 24), from("open.spotify.com", 14)],
        converts_per_mille: 9,
    },
    Link {
        slug: "box",
        name: "QR code on the box",
        destination: "https://example.com/brew",
        tags: &["print", "packaging"],
        per_day: 47.0,
        age_days: DAYS,
        trend: Trend::Steady,
        sources: &[campaign(None, ["packaging", "qr", "brew-guide"], 1)],
        converts_per_mille: 5,
    },
    Link {
        slug: "grinder-review",
        name: "Video: grinder review",
        destination: "https://example.com/products/hand-grinder",
        tags: &["video", "partner"],
        per_day: 52.0,
        age_days: 27,
        trend: Trend::Launch,
        sources: &[campaign(Some("youtube.com"), ["youtube", "video", "grinder-review"], 85), direct(15)],
        converts_per_mille: 24,
    },
    Link {
        slug: "refer",
        name: "Refer a friend",
        destination: "https://example.com/refer",
        tags: &["referral"],
        per_day: 21.0,
        age_days: DAYS,
        trend: Trend::Growing,
        sources: &[direct(56), from("web.whatsapp.com", 26), from("facebook.com", 18)],
        converts_per_mille: 30,
    },
    Link {
        slug: "guide",
        name: "Brewing guide",
        destination: "https://example.com/guide",
        tags: &["help"],
        per_day: 27.0,
        age_days: DAYS,
        trend: Trend::Steady,
        sources: &[from("google.com", 54), from("duckduckgo.com", 9), from("bing.com", 7), direct(30)],
        converts_per_mille: 4,
    },
    Link {
        slug: "brew-report",
        name: "Partner: The Brew Report",
        destination: "https://example.com/welcome?utm_source=brew-report",
        tags: &["partner"],
        per_day: 18.0,
        age_days: 20,
        trend: Trend::Steady,
        sources: &[campaign(Some("brewreport.example"), ["brew-report", "referral", "partner"], 1)],
        converts_per_mille: 21,
    },
    Link {
        slug: "subscribe",
        name: "Coffee subscription",
        destination: "https://example.com/subscription",
        tags: &["newsletter", "paid"],
        per_day: 33.0,
        age_days: 12,
        trend: Trend::Growing,
        sources: &[
            campaign(Some("google.com"), ["google", "cpc", "subscription"], 48),
            campaign(None, ["newsletter", "email", "subscription"], 40),
            direct(12),
        ],
        converts_per_mille: 33,
    },
    Link {
        slug: "barista-jobs",
        name: "Careers: baristas",
        destination: "https://example.com/careers/barista",
        tags: &["hiring"],
        per_day: 6.0,
        age_days: 18,
        trend: Trend::Steady,
        sources: &[from("linkedin.com", 66), from("indeed.com", 22), direct(12)],
        converts_per_mille: 0,
    },
    Link {
        slug: "press",
        name: "Press kit",
        destination: "https://example.com/press",
        tags: &["press"],
        per_day: 3.0,
        age_days: DAYS,
        trend: Trend::Steady,
        sources: &[direct(80), from("mail.google.com", 20)],
        converts_per_mille: 0,
    },
];

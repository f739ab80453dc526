//! Measures how accurately real User-Agents are classified.
//!
//! Browsers come from npm `user-agents`, which collects those of real visitors; bots and previews from the examples in
//! npm `crawler-user-agents`. Both are downloaded at the pinned version; none of their text is in this repository.
//! `cargo test -p service --features agent --test agents -- --nocapture` prints the counts.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and this one prints counts"
)]

use std::collections::HashSet;
use std::path::Path;
use std::{fmt, fs};

use devstack::install::Cache;
use devstack::scratch::Scratch;
use serde::{Deserialize, Serialize};
use service::agent::{Agents, Class, TEXT_BYTES};

const CLASSES: [Class; 3] = [Class::Human, Class::Bot, Class::Preview];

/// Number of texts per class in the sample of 200.
const PICKED: [(Class, usize); 3] = [(Class::Human, 100), (Class::Bot, 60), (Class::Preview, 40)];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Browser {
    user_agent: String,
    device_category: String,
}

#[derive(Clone, Deserialize, Serialize)]
struct Crawler {
    pattern: String,
    #[serde(default)]
    instances: Vec<String>,
    #[serde(default)]
    tags: Vec<String>,
}

/// Patterns of the list whose examples are people's browsers; see `service::agent`.
const PEOPLE: [&str; 4] = [r"AP3A\.240617\.008", r"Code\/1\.", "MetaIAB Facebook", r"Trae\/"];

impl Crawler {
    fn class(&self) -> Class {
        if PEOPLE.contains(&self.pattern.as_str()) {
            return Class::Human;
        }
        let tagged = |tag: &str| self.tags.iter().any(|other| other == tag);
        let is_assistant = self.pattern.starts_with("meta-externalfetcher");
        match tagged("social-preview") && !tagged("ai-crawler") && !tagged("search-engine") && !is_assistant {
            true => Class::Preview,
            false => Class::Bot,
        }
    }
}

/// A confusion matrix: rows are classes by the lists, columns by [`Agents`].
#[derive(Default)]
struct Confusion([[usize; 3]; 3]);

impl Confusion {
    fn count(agents: &Agents, texts: &[(Class, String)]) -> Self {
        let mut confusion = Self::default();
        for (class, text) in texts {
            confusion.0[*class as usize][agents.read(text, None).class as usize] += 1;
        }
        confusion
    }

    fn get(&self, is: Class, read: Class) -> usize {
        self.0[is as usize][read as usize]
    }
}

impl fmt::Display for Confusion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "| is \\ read as | human | bot | preview |\n|---|---|---|---|")?;
        for (class, row) in CLASSES.iter().zip(self.0) {
            let [human, bot, preview] = row;
            writeln!(formatter, "| {class:?} | {human} | {bot} | {preview} |")?;
        }
        Ok(())
    }
}

/// Returns all distinct browsers and all examples of the list of crawlers.
fn texts(browsers: &[Browser], crawlers: &[Crawler]) -> Vec<(Class, String)> {
    let mut seen = HashSet::new();
    let people = browsers.iter().map(|browser| (Class::Human, browser.user_agent.clone()));
    let programs = crawlers
        .iter()
        .flat_map(|crawler| crawler.instances.iter().map(|instance| (crawler.class(), instance.clone())));
    people.chain(programs).filter(|(_, text)| seen.insert(text.clone())).collect()
}

/// Returns the sample, spread evenly over the lists.
fn pick(texts: &[(Class, String)]) -> Vec<(Class, String)> {
    let mut picked = Vec::new();
    for (class, count) in PICKED {
        let all: Vec<_> = texts.iter().filter(|(is, _)| *is == class).collect();
        picked.extend((0..count).map(|index| all[index * all.len() / count].clone()));
    }
    picked
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[tokio::test]
async fn two_hundred_real_agents_are_classified() {
    let cache = Cache::shared();
    let data = cache.data().await.unwrap();
    let browsers: Vec<Browser> = read(&cache.browsers().await.unwrap());
    let crawlers: Vec<Crawler> = read(&data.join("crawler-user-agents.json"));
    let all = texts(&browsers, &crawlers);
    let picked = pick(&all);
    assert_eq!(picked.len(), 200);

    let (lists, built_in) = (Agents::load(&data).unwrap(), Agents::built_in());
    println!("{lists}");
    let table = Confusion::count(&lists, &picked);
    println!("200 agents, by the lists:\n{table}");
    println!("200 agents, by the built-in table:\n{}", Confusion::count(&built_in, &picked));
    let whole = Confusion::count(&lists, &all);
    println!("all {} agents, by the lists:\n{whole}", all.len());
    let small = Confusion::count(&built_in, &all);
    println!("all {} agents, by the built-in table:\n{small}", all.len());

    assert_eq!(table.get(Class::Human, Class::Human), 100);
    assert_eq!(table.get(Class::Bot, Class::Bot), 60);
    assert_eq!(table.get(Class::Preview, Class::Preview), 40);
    // A person classified as a bot would be missing from statistics.
    for confusion in [&whole, &small] {
        assert_eq!(confusion.get(Class::Human, Class::Bot) + confusion.get(Class::Human, Class::Preview), 0);
    }
    let missed: usize = [Class::Bot, Class::Preview].map(|class| whole.get(class, Class::Human)).iter().sum();
    assert_eq!(missed, 0, "programs of the list are classified as people");

    let wrong = browsers
        .iter()
        .filter(|browser| lists.read(&browser.user_agent, None).device_type != browser.device_category);
    let (wrong, count) = (wrong.count(), browsers.len());
    println!("kind of device: {wrong} of {count} visits differ from the list's");
    assert!(wrong * 1_000 <= count);
    let unknown = browsers.iter().map(|browser| lists.read(&browser.user_agent, None));
    let unknown = unknown.filter(|agent| agent.browser.is_none() || agent.os.is_none()).count();
    println!("browser or system unknown: {unknown} of {count} visits");
    assert!(unknown * 1_000 <= count);
}

/// Embedded browsers of apps include the app's name in their User-Agent.
#[tokio::test]
async fn embedded_browsers_of_apps_are_human() {
    let lists = Agents::load(&Cache::shared().data().await.unwrap()).unwrap();
    let android = "Mozilla/5.0 (Linux; Android 15; CPH2557 Build/AP3A.240617.008; wv) AppleWebKit/537.36 (KHTML, like \
        Gecko) Version/4.0 Chrome/142.0.0.0 Mobile Safari/537.36";
    let iphone = "Mozilla/5.0 (iPhone; CPU iPhone OS 18_7 like Mac OS X) AppleWebKit/605.1.15 (KHTML, \
        like Gecko) Mobile/15E148";
    let desktop = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 \
        Electron/39.0.0 Safari/537.36";
    for app in [
        "",
        "Barcelona 338.0.0.29.90",
        "Bluesky/1.90",
        "BytedanceWebview/d8a21c6",
        "FBAN/FBIOS;FBAV/471.0.0.47.109;FBLC/en_US",
        "FB_IAB/FB4A;FBAV/471.0.0.47.109;",
        "FB_IAB/Orca-Android;FBAV/463.0.0.40.89;",
        "GSA/320.0.640952459",
        "Instagram 406.0.0.58.159",
        "KAKAOTALK 10.8.3",
        "Line/14.9.0/IAB",
        "LinkedInApp/9.29.7892",
        "Mastodon/2026.1",
        "MetaIAB Facebook",
        "MicroMessenger/8.0.49",
        "Notion/3.11.1",
        "Pinterest/iOS",
        "Reddit/2026.25.1",
        "Slack_SSB/4.39.95",
        "Snapchat/12.96.0.40",
        "Teams/24193.1805",
        "Telegram-Android/11.2.3",
        "Tumblr/36.0",
        "Twitter for iPhone/10.48",
        "Viber/22.8.0",
        "discord/1.0.9152",
        "musical_ly_35.5.0 JsSdk/2.0",
        "obsidian/1.11.7",
    ] {
        for browser in [android, iphone, desktop] {
            let text = format!("{browser} {app}");
            assert_eq!(lists.read(&text, None).class, Class::Human, "{text}");
        }
    }
}

#[tokio::test]
async fn names_of_phones_are_no_marks() {
    let lists = Agents::load(&Cache::shared().data().await.unwrap()).unwrap();
    for model in ["HTC Butterfly", "O+ Sonic", "Fever_Plus", "Expanse", "Spider 8", "M bot 60", "CUBOT X30"] {
        for agents in [&lists, &Agents::built_in()] {
            let text = format!(
                "Mozilla/5.0 (Linux; Android 14; {model}) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 \
                    Mobile Safari/537.36"
            );
            assert_eq!(agents.read(&text, None).class, Class::Human, "{text}");
        }
    }
}

#[tokio::test]
async fn the_model_of_a_phone_hides_no_browser() {
    let lists = Agents::load(&Cache::shared().data().await.unwrap()).unwrap();
    for model in ["M bot 60", "My_bot", "Spider 8", "Crawler", "Archiver 2", "CUBOT X30", "Pixel 9"] {
        for device in [model.to_owned(), format!("{model} Build/RP1A"), format!("{model} Build/RP1A; wv")] {
            let android =
                format!("Mozilla/5.0 (Linux; Android 11; {device}) AppleWebKit/537.36 (KHTML, like Gecko)");
            for (text, browser) in [
                (format!("{android} Version/4.0 Chrome/120.0 Mobile Safari/537.36"), "Chrome"),
                (
                    format!("{android} SamsungBrowser/25.0 Chrome/121.0.0.0 Mobile Safari/537.36"),
                    "Samsung Internet",
                ),
            ] {
                let agent = lists.read(&text, None);
                assert_eq!(
                    (agent.browser.as_deref(), agent.os.as_deref()),
                    (Some(browser), Some("Android")),
                    "{text}"
                );
            }
        }
    }
    let phone = "Mozilla/5.0 (Linux; Android 11; M bot 60) AppleWebKit/537.36 Chrome/120.0 Mobile";
    let bot = lists.read(&format!("{phone} (compatible; Somebot/1.0)"), None);
    assert_eq!((bot.class, bot.browser), (Class::Bot, None), "the mark of a crawler is not a model");
    let long = lists.read(&format!("{phone} {} Somebot/1.0", "x".repeat(TEXT_BYTES)), None);
    assert_eq!((long.class, long.browser.as_deref()), (Class::Bot, Some("Chrome")), "as a recount reads it");
}

#[tokio::test]
async fn assistants_that_fetch_for_a_person_are_bots() {
    let lists = Agents::load(&Cache::shared().data().await.unwrap()).unwrap();
    for assistant in [
        "ChatGPT-User/1.0",
        "Claude-User/1.0",
        "MistralAI-User/1.0",
        "Perplexity-User/1.0",
        "meta-externalfetcher/1.1",
    ] {
        let browser = format!("Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko; compatible; {assistant})");
        for text in [&browser, assistant] {
            assert_eq!(lists.read(text, None).class, Class::Bot, "{text}");
            assert_eq!(Agents::built_in().read(text, None).class, Class::Bot, "{text}");
        }
    }
}

/// Ten-fold cross-validation: a tenth of the list is left out and its examples are classified.
#[tokio::test]
async fn most_programs_missing_from_the_list_are_not_human() {
    let data = Cache::shared().data().await.unwrap();
    let crawlers: Vec<Crawler> = read(&data.join("crawler-user-agents.json"));
    let scratch = Scratch::new("agents").unwrap();
    fs::write(scratch.path().join("uap-core.json"), r#"{"user_agent_parsers": [], "os_parsers": []}"#)
        .unwrap();
    let mut unknown = Confusion::default();
    for fold in 0..10 {
        let (left_out, known): (Vec<_>, Vec<_>) =
            crawlers.iter().cloned().enumerate().partition(|(index, _)| index % 10 == fold);
        let known: Vec<Crawler> = known.into_iter().map(|(_, crawler)| crawler).collect();
        fs::write(scratch.path().join("crawler-user-agents.json"), serde_json::to_vec(&known).unwrap())
            .unwrap();
        let agents = Agents::load(scratch.path()).unwrap();
        for (_, crawler) in left_out {
            let examples: Vec<_> =
                crawler.instances.iter().map(|text| (crawler.class(), text.clone())).collect();
            let confusion = Confusion::count(&agents, &examples);
            unknown.0.iter_mut().flatten().zip(confusion.0.iter().flatten()).for_each(|(sum, n)| *sum += n);
        }
    }
    println!("programs that are not on the list:\n{unknown}");
    let all: usize = unknown.0.iter().flatten().sum();
    let people: usize = unknown.0.iter().map(|row| row[Class::Human as usize]).sum();
    assert!(people * 100 < all * 7, "{people} of {all} are classified as people");
}

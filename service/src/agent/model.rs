//! Finds the model of the device in a User-Agent. Phones have names such as `M bot 60`, `Spider 8`, `HTC Butterfly`.

use std::borrow::Cow;
use std::ops::Range;

/// What apps write before the device in parentheses, behind the browser.
const APPS_DEVICE: &str = " Android (";

/// The length from which a model is removed wherever it is repeated: shorter ones are parts of many words.
const UNMISTAKABLE: usize = 4;

/// Returns a User-Agent without the model of an Android device.
pub(super) fn without_model(text: &str) -> Cow<'_, str> {
    let Some(model) = find(text) else { return text.into() };
    let (before, mut behind) = (&text[..model.start], Cow::from(&text[model.end..]));
    if let Some((start, device)) = behind.split_once(APPS_DEVICE) {
        // The stored part of a User-Agent often ends within it.
        let rest = device.split_once(')').map_or("", |(_, rest)| rest);
        behind = [start, rest].concat().into();
    }
    let model = text[model].trim();
    if model.len() >= UNMISTAKABLE {
        behind = behind.replace(model, "").into();
    }
    [before, &behind].concat().into()
}

/// Finds the model: the part after the version, and after a language or a kind of device if another part follows, as
/// older versions of Android and Firefox send it. It ends before the build. All other parts may be marks of crawlers.
fn find(text: &str) -> Option<Range<usize>> {
    let mut start = text.find("Android")?;
    let mut parts = text[start..].split(')').next()?.split(';');
    start += parts.next()?.len() + 1;
    let mut part = parts.next()?;
    if (matches!(part.trim(), "Mobile" | "Tablet") || is_language(part.trim()))
        && let Some(next) = parts.next()
    {
        start += part.len() + 1;
        part = next;
    }
    let model = part.split(" Build/").next()?;
    // With a version or an address it is the name of a program.
    (!model.contains('/')).then(|| start..start + model.len())
}

fn is_language(part: &str) -> bool {
    let mut codes = part.split(['-', '_']);
    let is_code = |code: &str| code.len() <= 4 && code.bytes().all(|byte| byte.is_ascii_alphabetic());
    codes.next().is_some_and(|language| language.len() == 2 && is_code(language)) && codes.all(is_code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_model_is_left_out() {
        for (text, rest) in [
            ("(Linux; Android 14; M bot 60) Chrome", "(Linux; Android 14;) Chrome"),
            (
                "(Linux; Android 14; M bot 60 Build/UP1A.1; wv) Chrome",
                "(Linux; Android 14; Build/UP1A.1; wv) Chrome",
            ),
            (
                "(Linux; Android 14; M bot 60; Build/UP1A.1) Chrome",
                "(Linux; Android 14;; Build/UP1A.1) Chrome",
            ),
            (
                "(Linux; U; Android 4.2; en-us; Spider 8 Build/1) X",
                "(Linux; U; Android 4.2; en-us; Build/1) X",
            ),
            ("(Linux; U; Android 4.2; de; Spider 8", "(Linux; U; Android 4.2; de;"),
            (
                "(Linux; U; Android 9; zh-Hans-CN; Spider 8 Build/1)",
                "(Linux; U; Android 9; zh-Hans-CN; Build/1)",
            ),
            ("(Android 11; Mobile; M bot 60; rv:140.0)", "(Android 11; Mobile;; rv:140.0)"),
            ("(Android 14; Mobile; rv:140.0) Gecko", "(Android 14; Mobile;) Gecko"),
            (
                "(Linux; Android 11; M bot 60) App 1 Android (30/11; M bot 60; M_bot_60; en_US) X",
                "(Linux; Android 11;) App 1 X",
            ),
            (
                "(Linux; Android 11; M bot 60) App/1 (M bot 60; Somebot)",
                "(Linux; Android 11;) App/1 (; Somebot)",
            ),
            ("(Linux; Android 11; X) App 1 Android (30/11; X; X_bot", "(Linux; Android 11;) App 1"),
            ("(Linux; Android 9; My_bot) X", "(Linux; Android 9;) X"),
            ("(Linux; Android 10; K) KHTML", "(Linux; Android 10;) KHTML"),
            ("Linux; Android 14; Spider 8 Build/1 X", "Linux; Android 14; Build/1 X"),
            ("Linux; Android 14; Spider 8 X/1", "Linux; Android 14; Spider 8 X/1"),
            ("(Linux; Android 5.0) X (compatible; Somebot)", "(Linux; Android 5.0) X (compatible; Somebot)"),
            ("(Linux; U; Android 4.2; en-us) X", "(Linux; U; Android 4.2;) X"),
            ("(Linux; Android 14; Some-Bot/1.0) X", "(Linux; Android 14; Some-Bot/1.0) X"),
            ("(Linux; Android 14; Pixel; Some-Bot/1.0) X", "(Linux; Android 14;; Some-Bot/1.0) X"),
            ("(iPhone; CPU iPhone OS 18_0; bot) X", "(iPhone; CPU iPhone OS 18_0; bot) X"),
            ("Android", "Android"),
            ("Android;", "Android;"),
        ] {
            assert_eq!(without_model(text), rest, "{text}");
        }
    }
}

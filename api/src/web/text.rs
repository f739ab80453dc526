//! Checks the characters of a text that a caller sends.
//!
//! Format characters are invisible or reorder their neighbours, so two texts that look the same can differ. They are
//! refused, except in texts that people read, where a script or an emoji needs them. Private and unassigned characters
//! are refused too: nothing says how they look.

use unicode_properties::general_category::{GeneralCategory, GeneralCategoryGroup};
use unicode_properties::{UnicodeEmoji as _, UnicodeGeneralCategory as _};

/// Checks a text that programs compare, such as an id or a URL.
pub(crate) fn check_exact(text: &str) -> Result<(), String> {
    check(text, |_, _, _| false)
}

/// Checks a text that people read, such as a name: it may have the format characters that scripts and emoji need.
pub(crate) fn check_readable(text: &str) -> Result<(), String> {
    check(text, is_needed)
}

/// Returns whether [`check_exact`] accepts a character.
pub(crate) fn is_exact(c: char) -> bool {
    fault(c).is_none()
}

/// `allows` is asked for each character with a fault, with the texts before and after it.
fn check(text: &str, allows: fn(&str, char, &str) -> bool) -> Result<(), String> {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Ok(());
    }
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        let after = rest.as_str();
        let Some(kind) = fault(c) else { continue };
        let (before, _) = text.split_at(text.len() - after.len() - c.len_utf8());
        let name = match kind {
            Refused::Control => return Err("must not contain control characters".to_owned()),
            _ if allows(before, c, after) => continue,
            Refused::Invisible => "invisible",
            Refused::Undefined => "undefined",
        };
        return Err(format!("must not contain the {name} character U+{:04X}", u32::from(c)));
    }
    Ok(())
}

/// The kinds of characters that are refused.
enum Refused {
    Control,
    Invisible,
    Undefined,
}

/// Returns of which kind a character is that is refused.
fn fault(c: char) -> Option<Refused> {
    match c.general_category() {
        GeneralCategory::Control => Some(Refused::Control),
        // The separators are line breaks, which no font shows.
        GeneralCategory::Format | GeneralCategory::LineSeparator | GeneralCategory::ParagraphSeparator => {
            Some(Refused::Invisible)
        }
        GeneralCategory::PrivateUse | GeneralCategory::Unassigned => Some(Refused::Undefined),
        _ => None,
    }
}

/// Returns whether scripts or emoji need a format character at its place.
fn is_needed(before: &str, c: char, after: &str) -> bool {
    let (former, next) = (before.chars().next_back(), after.chars().next());
    match c {
        '\u{200c}' | '\u{200d}' if former.is_some_and(is_joined) => true,
        '\u{200d}' => {
            let former = before.trim_end_matches(is_selector).chars().next_back();
            former.is_some_and(is_emoji) && next.is_some_and(is_emoji)
        }
        // The Mongolian vowel separator changes the letters around it.
        '\u{180e}' => matches!(former, Some('\u{180b}'..='\u{180d}' | '\u{180f}' | '\u{1820}'..='\u{18aa}')),
        _ if is_tag(c) => is_in_flag(before, c, after),
        // Visible signs before a number or a word: property Prepended_Concatenation_Mark.
        '\u{600}'..='\u{605}'
        | '\u{6dd}'
        | '\u{70f}'
        | '\u{890}'..='\u{891}'
        | '\u{8e2}'
        | '\u{110bd}'
        | '\u{110cd}' => next.is_some_and(|next| !next.is_ascii() && next.is_alphanumeric()),
        _ => false,
    }
}

/// Returns whether a character is a letter, digit or mark of a script whose letters join or form conjuncts. A joiner
/// behind it shows there, also at the end of a word.
fn is_joined(c: char) -> bool {
    let is_of_script = matches!(c,
        // Hebrew to Myanmar: also Arabic, Syriac, N'Ko and the scripts of India.
        '\u{590}'..='\u{109f}'
        // The Philippines, Khmer, Mongolian to Tai Tham.
        | '\u{1700}'..='\u{1aaf}'
        // Balinese to Ol Chiki, Vedic signs.
        | '\u{1b00}'..='\u{1c7f}'
        | '\u{1cd0}'..='\u{1cff}'
        // Tifinagh.
        | '\u{2d30}'..='\u{2d7f}'
        // Syloti Nagri to Rejang, Javanese to Meetei Mayek, without Hangul, Ethiopic, Latin and Cherokee between them.
        | '\u{a800}'..='\u{a95f}'
        | '\u{a980}'..='\u{aaff}'
        | '\u{abc0}'..='\u{abff}'
        // Forms of Hebrew and Arabic.
        | '\u{fb1d}'..='\u{fdff}'
        | '\u{fe70}'..='\u{fefc}'
        // Kharoshthi to Makasar and Tamil; Adlam, Arabic in mathematics.
        | '\u{10a00}'..='\u{11fff}'
        | '\u{1e900}'..='\u{1eeff}');
    is_of_script && (c.is_alphanumeric() || c.general_category_group() == GeneralCategoryGroup::Mark)
}

/// Returns whether it selects a form of the character before it, such as the coloured one.
fn is_selector(c: char) -> bool {
    matches!(c, '\u{fe00}'..='\u{fe0f}')
}

/// Unicode counts digits, `#` and `*` too, which begin keycaps.
fn is_emoji(c: char) -> bool {
    !c.is_ascii() && c.is_emoji_char()
}

fn is_tag(c: char) -> bool {
    matches!(c, '\u{e0020}'..='\u{e007f}')
}

/// Returns whether a tag is part of a flag of a region: a black flag, the region's code in tags, and the closing tag.
fn is_in_flag(before: &str, c: char, after: &str) -> bool {
    let flag = before.trim_end_matches(is_tag);
    let tags = before.chars().skip(flag.chars().count());
    let tags: Vec<char> = tags.chain([c]).chain(after.chars().take_while(|&c| is_tag(c))).collect();
    let Some(('\u{e007f}', code)) = tags.split_last() else { return false };
    flag.ends_with('\u{1f3f4}')
        && (3..=6).contains(&code.len())
        && code.iter().all(|tag| matches!(tag, '\u{e0030}'..='\u{e0039}' | '\u{e0061}'..='\u{e007a}'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_has_an_invisible_or_undefined_character() {
        for (c, code, kind) in [
            ('\u{ad}', "U+00AD", "invisible"),
            ('\u{61c}', "U+061C", "invisible"),
            ('\u{200b}', "U+200B", "invisible"),
            ('\u{200e}', "U+200E", "invisible"),
            ('\u{2028}', "U+2028", "invisible"),
            ('\u{2029}', "U+2029", "invisible"),
            ('\u{202e}', "U+202E", "invisible"),
            ('\u{2060}', "U+2060", "invisible"),
            ('\u{2066}', "U+2066", "invisible"),
            ('\u{feff}', "U+FEFF", "invisible"),
            ('\u{fffb}', "U+FFFB", "invisible"),
            ('\u{e0001}', "U+E0001", "invisible"),
            ('\u{e0061}', "U+E0061", "invisible"),
            ('\u{e000}', "U+E000", "undefined"),
            ('\u{10fffd}', "U+10FFFD", "undefined"),
            ('\u{378}', "U+0378", "undefined"),
            ('\u{ffff}', "U+FFFF", "undefined"),
        ] {
            for text in [format!("{c}"), format!("{c}é"), format!("a{c}b"), format!("é{c}")] {
                let fault = Err(format!("must not contain the {kind} character {code}"));
                assert_eq!(check_exact(&text), fault, "{text:?}");
                assert_eq!(check_readable(&text), fault, "{text:?}");
            }
        }
        for text in ["\n", "a\u{0}", "é\u{7f}", "\u{85}é"] {
            let fault = Err("must not contain control characters".to_owned());
            assert_eq!(check_exact(text), fault, "{text:?}");
            assert_eq!(check_readable(text), fault, "{text:?}");
        }
    }

    #[test]
    fn what_is_visible_is_allowed() {
        for text in [
            "",
            "Spring sale",
            "Zürich\u{a0}🚲",
            "नमस्ते",
            "שלום",
            "1\u{fe0f}\u{20e3}",
            "❤\u{fe0f}",
            "🇩🇪",
            "\u{fffd}",
        ] {
            assert_eq!(check_exact(text), Ok(()), "{text:?}");
            assert_eq!(check_readable(text), Ok(()), "{text:?}");
        }
    }

    #[test]
    fn what_people_read_has_the_format_characters_of_scripts_and_emoji() {
        for text in [
            "می\u{200c}خواهم",
            "۵\u{200c}ساله",
            // At the end of a word, in Sorani Kurdish and in the name of the Persian era.
            "ئه\u{200c}مه\u{200c}",
            "ئه\u{200c}مه\u{200c} a",
            "۱۴۰۲ ه\u{200d}.ش",
            "ශ\u{dca}\u{200d}රී",
            "র\u{200d}\u{9cd}যাব",
            // With the old spelling of a final consonant.
            "അവന\u{d4d}\u{200d}",
            "അവന\u{d4d}\u{200d} a",
            "ᠭᠠᠵᠠᠷ\u{180e}ᠠ",
            "ᠨ\u{180e}",
            "ᠭ\u{180b}\u{180e}ᠠ",
            "👨\u{200d}👩\u{200d}👧",
            "👩🏽\u{200d}💻",
            "❤\u{fe0f}\u{200d}🔥",
            "🏳\u{fe0f}\u{200d}🌈",
            "🏴\u{200d}☠\u{fe0f}",
            "🏴\u{e0067}\u{e0062}\u{e0073}\u{e0063}\u{e0074}\u{e007f} Scotland",
            "🏴\u{e0075}\u{e0073}\u{e0061}\u{e007f}",
            "🏴\u{e0066}\u{e0072}\u{e0030}\u{e0031}\u{e0032}\u{e0033}\u{e007f}",
            "\u{600}١٢",
            "\u{6dd}١",
            "\u{70f}ܐ",
            "\u{8e2}١",
            "\u{110bd}\u{11067}",
        ] {
            assert_eq!(check_readable(text), Ok(()), "{text:?}");
            assert!(check_exact(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn format_characters_of_scripts_and_emoji_are_allowed_only_at_their_place() {
        for text in [
            "\u{200c}خواهم",
            "می \u{200c}خواهم",
            "می.\u{200c}",
            "می\u{200c}\u{200c}خواهم",
            "می\u{200c}\u{200d}خواهم",
            "می\u{200c}\u{200c}",
            "sa\u{200d}le",
            "sa\u{200d}می",
            "1\u{200c}2",
            "é\u{200c}é",
            "cafe\u{301}\u{200d}",
            "ა\u{200d}ა",
            "ሰ\u{200d}ላ",
            "1\u{fe0f}\u{20e3}\u{200d}",
            "\u{200d}👩",
            "👩\u{200d}",
            "👩\u{200d} 👩",
            "👩\u{200d}\u{200d}👩",
            "👩\u{200c}👩",
            "❤\u{fe0f}\u{200d}",
            "❤\u{fe0f}\u{200c}a",
            "a\u{fe0f}\u{200d}🔥",
            "#\u{200d}#",
            "\u{180e}ᠠ",
            "a\u{180e}ᠠ",
            "ᠨ\u{180e}\u{180e}",
            "\u{600}",
            "\u{600}12",
            "\u{6dd}a",
            "\u{6dd} ١",
            "\u{8e2}",
            "\u{600}\u{600}",
            "\u{e0067}",
            "🏳\u{e0067}",
            "🏴 \u{e0067}",
            // Not closed, too short, too long, with another tag, closed twice, another flag.
            "🏴\u{e0067}\u{e0062}\u{e0073}",
            "🏴\u{e0067}\u{e0062}\u{e0073} \u{e007f}",
            "🏴\u{e007f}",
            "🏴\u{e0067}\u{e0062}\u{e007f}",
            "🏴\u{e0067}\u{e0062}\u{e0073}\u{e0063}\u{e0074}\u{e0067}\u{e0062}\u{e007f}",
            "🏴\u{e0067}\u{e0062}\u{e0020}\u{e007f}",
            "🏴\u{e0047}\u{e0042}\u{e0053}\u{e007f}",
            "🏴\u{e0067}\u{e0062}\u{e0073}\u{e007f}\u{e007f}",
            "🏴\u{e0067}\u{e0062}\u{e0073}\u{e007f}\u{e0067}",
            "🏁\u{e0067}\u{e0062}\u{e0073}\u{e007f}",
        ] {
            assert!(check_readable(text).is_err(), "{text:?}");
        }
    }
}

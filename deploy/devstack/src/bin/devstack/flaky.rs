//! The report of tests that failed and then passed.

use anyhow::Context as _;
use roxmltree::{Document, Node};

/// Reads nextest's JUnit file and returns lines for a reader: each flaky test with the output of its first failure, and
/// how many there are. Nothing when there are none.
///
/// # Errors
/// When it is not XML.
pub(crate) fn report(junit: &str) -> anyhow::Result<Vec<String>> {
    let document = Document::parse(junit).context("the JUnit file of the tests cannot be read")?;
    let cases = document.descendants().filter(|node| node.has_tag_name("testcase"));
    let (mut lines, mut tests, mut flaky) = (Vec::new(), 0, 0);
    for case in cases {
        tests += 1;
        let Some(first) = case.children().find(|child| child.has_tag_name("flakyFailure")) else { continue };
        flaky += 1;
        let [program, test] = ["classname", "name"].map(|name| attribute(case, name));
        let [fault, seconds] = ["type", "time"].map(|name| attribute(first, name));
        lines.push(format!("\n--- flaky: {program} {test}: {fault} after {seconds} s"));
        // The element's text repeats a part of them.
        let outputs = first.children().filter(Node::is_element).filter_map(|output| output.text());
        lines.extend(outputs.map(|output| output.trim().to_owned()));
    }
    if flaky > 0 {
        lines.push(format!("\n{flaky} of {tests} tests are flaky: they failed and then passed"));
    }
    Ok(lines)
}

fn attribute<'a>(node: Node<'a, '_>, name: &str) -> &'a str {
    node.attribute(name).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const JUNIT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
        <testsuites name="nextest-run" tests="3" failures="1">
            <testsuite name="api::it" tests="3" failures="1">
                <testcase name="keys::one" classname="api::it" time="0.020"/>
                <testcase name="keys::two" classname="api::it" time="0.008">
                    <flakyFailure time="4.010" message="7 &lt; 8" type="test failure with exit code 101">7 &lt; 8
                        <system-out>first try, out</system-out>
                        <system-err>first try, err</system-err>
                    </flakyFailure>
                    <flakyFailure time="3" type="test timeout"><system-out>second try</system-out></flakyFailure>
                </testcase>
                <testcase name="keys::three" classname="api::it" time="1">
                    <failure type="test failure">wrong</failure>
                    <rerunFailure type="test failure">wrong again</rerunFailure>
                </testcase>
            </testsuite>
        </testsuites>"#;

    #[test]
    fn flaky_tests_are_named_with_the_output_of_their_first_failure() {
        let lines = report(JUNIT).unwrap();
        assert_eq!(
            lines,
            [
                "\n--- flaky: api::it keys::two: test failure with exit code 101 after 4.010 s",
                "first try, out",
                "first try, err",
                "\n1 of 3 tests are flaky: they failed and then passed"
            ]
        );
    }

    #[test]
    fn a_run_without_flaky_tests_reports_nothing() {
        let junit =
            r#"<testsuites><testsuite><testcase name="one" classname="api"/></testsuite></testsuites>"#;
        assert!(report(junit).unwrap().is_empty());
        assert!(report("<testsuites>").is_err());
    }
}

//! Requests to a program's operations listener.

use serde_json::Value;

use crate::engines::http_client;

/// Returns the status and the report of `/readyz` at this URL.
///
/// # Panics
/// When there is no answer, or the answer is not JSON.
pub async fn readyz(url: &str) -> (u16, Value) {
    let answer = http_client().get(format!("{url}/readyz")).send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

/// Returns the page of metrics at this URL.
///
/// # Panics
/// When there is no answer.
pub async fn metrics_page(url: &str) -> String {
    http_client().get(format!("{url}/metrics")).send().await.unwrap().text().await.unwrap()
}

/// Returns the value of a series, or the sum of a metric over its labels.
///
/// # Panics
/// When it does not exist: a counter whose label values are known exists from the start of its program, a gauge once
/// its value is known.
pub async fn metric(url: &str, name: &str) -> f64 {
    let page = metrics_page(url).await;
    value(&page, name).unwrap_or_else(|| panic!("no metric {name} in\n{page}"))
}

/// Returns the same, or `None` when it does not exist.
///
/// # Panics
/// When there is no answer.
pub async fn find_metric(url: &str, name: &str) -> Option<f64> {
    value(&metrics_page(url).await, name)
}

/// Reads a value from a page in Prometheus' text format.
fn value(page: &str, name: &str) -> Option<f64> {
    let values = page.lines().filter_map(|line| {
        let rest = line.strip_prefix(name).filter(|rest| rest.starts_with([' ', '{']))?;
        rest.rsplit_once(' ')?.1.parse::<f64>().ok()
    });
    values.reduce(|sum, value| sum + value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_the_sum_of_its_own_series() {
        let page = "# TYPE clicks_total counter\nclicks_total{class=\"human\"} 7\nclicks_total{class=\"bot\"} 2\n\
                    clicks_total_other 100\nplain_total 3\n";
        assert_eq!(value(page, "clicks_total"), Some(9.0));
        assert_eq!(value(page, "clicks_total{class=\"bot\"}"), Some(2.0));
        assert_eq!(value(page, "plain_total"), Some(3.0));
        assert_eq!(value(page, "absent_total"), None);
    }
}

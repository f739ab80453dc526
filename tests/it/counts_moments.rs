//! A statement to ClickHouse is held at a chosen moment while its sender dies, hangs or times out.

use tests::clicks::{Clicks, Plan};
use tests::counted::{all_counted, count, is_exact, more_rows};
use tests::engines::{Isolated, counting};
use tests::processor::Processor;
use tests::proxy::{CLICKS, Fate, Moment, OWNERS, Proxy};
use tests::{eventually, metric};

/// Counts the epochs that were raised for partitions; upkeep has its own source.
const TAKES: &str = "SELECT count() FROM owners WHERE src < 4294967295";

/// Checks ClickHouse's answer to an insert under an old epoch, which has stored nothing.
///
/// A server that knows the higher epoch rejects it, with the code of `throwIf`. A replica may not know it yet: there
/// the insert is a success that stores nothing, because another one has its token.
fn assert_rejected(engines: &Isolated, answer: &str) {
    let is_ignored = engines.is_replicated() && answer.starts_with("HTTP/1.1 200");
    assert!(is_ignored || answer.contains("Exception-Code: 395"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_processor_killed_at_any_step_of_an_insert_loses_and_repeats_nothing() {
    let engines = counting().await;
    let proxy = Proxy::start(&engines).await;
    let clicks = Clicks::start(&engines, Plan::at(300));
    let processor = Processor::start(&proxy.before(&engines)).await;
    for (statement, moment) in [
        (CLICKS, Moment::Before),
        (CLICKS, Moment::Half),
        (CLICKS, Moment::Answered),
        (OWNERS, Moment::Before),
        (OWNERS, Moment::Answered),
    ] {
        more_rows(&engines).await;
        proxy.set(statement, moment);
        if statement == OWNERS {
            // A processor raises epochs when it takes partitions over.
            processor.server.kill().await;
            processor.server.start().await.unwrap();
        }
        proxy.holds().await;
        processor.server.kill().await;
        proxy.release(Fate::IsCut);
        processor.server.start().await.unwrap();
    }
    more_rows(&engines).await;
    let ledger = clicks.stop().await;
    all_counted(&engines, &ledger).await;
    processor.stop().await;
    is_exact(&engines, &ledger).await;
}

/// Waits until a processor has every partition and stores rows.
async fn works(engines: &Isolated) {
    // The first time twice: before its source begins, and after.
    eventually("every partition is taken over", async || {
        let takes = count(engines, TAKES).await;
        if takes >= 12 { Ok(()) } else { Err(takes) }
    })
    .await;
    more_rows(engines).await;
}

/// Holds an insert of a frozen processor until another one has its partitions, and then releases it. Returns
/// ClickHouse's answer to it, and the number of doubled rows.
async fn a_late_insert(engines: &Isolated, proxy: Proxy) -> (String, usize) {
    let clicks = Clicks::start(engines, Plan::at(300));
    let first = Processor::start(&proxy.before(engines)).await;
    works(engines).await;
    proxy.set(CLICKS, Moment::Before);
    proxy.holds().await;
    first.server.pause().await.unwrap();

    let takes = count(engines, TAKES).await;
    let second = Processor::start(engines).await;
    eventually("the other processor has every partition", async || {
        let more = count(engines, TAKES).await - takes;
        if more >= 6 { Ok(()) } else { Err(more) }
    })
    .await;
    more_rows(engines).await;
    // The other processor has stored the rows of the held insert.
    let ledger = clicks.stop().await;
    all_counted(engines, &ledger).await;

    proxy.release(Fate::GoesOn);
    let answer = proxy.answer().await;
    let repeats = count(engines, "SELECT count() - uniqExact(src, koff) FROM clicks").await;
    first.server.resume().await.unwrap();
    let more = Clicks::start(engines, Plan::at(300));
    more.more(300).await;
    let mut both = more.stop().await;
    both.clicks.extend(ledger.clicks);
    all_counted(engines, &both).await;
    first.stop().await;
    second.stop().await;
    if repeats == 0 {
        is_exact(engines, &both).await;
    }
    (answer, repeats)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_insert_of_a_frozen_processor_is_rejected() {
    let engines = counting().await;
    let proxy = Proxy::start(&engines).await;
    let (answer, repeats) = a_late_insert(&engines, proxy).await;
    assert_rejected(&engines, &answer);
    assert_eq!(repeats, 0);
}

/// Shows that the test above can fail: without the check, a single server stores the same insert. Replicas reject it by
/// its token.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_epoch_check_a_late_insert_doubles_clicks() {
    let engines = counting().await;
    let proxy = Proxy::without_epoch_check(&engines).await;
    let (answer, repeats) = a_late_insert(&engines, proxy).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(repeats > 0, !engines.is_replicated(), "{repeats} doubled clicks");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_insert_after_its_senders_timeout_is_rejected() {
    let engines = counting().await;
    let proxy = Proxy::start(&engines).await;
    let clicks = Clicks::start(&engines, Plan::at(300));
    let processor = Processor::start(&proxy.before(&engines)).await;
    works(&engines).await;
    let takes = count(&engines, TAKES).await;
    proxy.set(CLICKS, Moment::Before);
    proxy.holds().await;
    // After half a minute without an answer, it takes the partition over again and inserts the missing rows.
    eventually("the partition is taken over again", async || {
        let now = count(&engines, TAKES).await;
        if now > takes { Ok(()) } else { Err(now) }
    })
    .await;
    more_rows(&engines).await;
    proxy.release(Fate::GoesOn);
    let answer = proxy.answer().await;
    assert_rejected(&engines, &answer);
    let ledger = clicks.stop().await;
    all_counted(&engines, &ledger).await;
    assert!(metric(processor.server.url(), "hopline_processor_doubtful_inserts_total").await > 0.0);
    processor.stop().await;
    is_exact(&engines, &ledger).await;
}

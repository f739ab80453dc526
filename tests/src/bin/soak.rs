//! The program of `./dev soak`: injects faults for longer than a test may take.

use std::io::Write as _;
use std::ops::RangeBounds;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use ::tests::arrivals::Arrivals;
use ::tests::faults::counts::{
    ClickhouseKills, ClickhouseOutage, CountsKafkaKills, Members, ProcessorKills, ReplicaFaults, Stops,
    Throughput, counts_clickhouse_kills, counts_clickhouse_outage, counts_kafka_kills, counts_members,
    counts_processor_kills, counts_replica_faults, counts_stops, counts_throughput,
};
use ::tests::faults::{
    EdgeKills, ImportKill, KafkaKills, KafkaOutage, OwnEngines, Promotion, Upgrade, WebhookFlood,
    WebhookHoles, WebhookKills, WebhookOutages, WebhookVerify, edge_kills, import_kill, kafka_kills,
    kafka_outage, progress, promotion, upgrade, webhook_flood, webhook_holes, webhook_kills, webhook_outages,
    webhook_verify,
};
use ::tests::tally::Tally;
use clap::builder::RangedI64ValueParser;
use clap::{Parser, Subcommand};
use futures_util::FutureExt as _;

/// Injects faults under load, and reports whether a click or a delivery was lost.
///
/// Each command starts what it breaks, beside a running stack: those of the edge start a Kafka and an edge, those of
/// webhooks and imports start everything, those of the counts start processors and the broken engine. The other engine
/// is the one that the environment names, if any.
#[derive(Debug, Parser)]
#[command(
    name = "./dev soak",
    bin_name = "./dev soak",
    version,
    after_help = "Progress goes to standard error, the verdict to standard output.\n\n\
    Exit codes: 0 when every answered click is on its topic and none would be counted twice, or was delivered under \
    one id and repeated within the bound, or is one row, or every row of a file is one link; \
    1 otherwise, 64 wrong usage."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Returns the parser of a number in a range.
fn count(range: impl RangeBounds<i64>) -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(range)
}

#[derive(Debug, Subcommand)]
enum Command {
    /// kill -9 of the edge at random moments, every third while it starts
    #[command(
        after_help = "Examples:\n  ./dev soak edge-kills\n  ./dev soak --release edge-kills --kills 500"
    )]
    EdgeKills {
        /// How often
        #[arg(long, value_name = "COUNT", default_value = "50", value_parser = count(1..))]
        kills: u32,
        /// Connections that click without a pause
        #[arg(long, value_name = "COUNT", default_value = "16", value_parser = count(1..=1000))]
        connections: u32,
    },
    /// kill -9 of Kafka, which comes back at once
    #[command(after_help = "Examples:\n  ./dev soak kafka-kills --kills 20")]
    KafkaKills {
        /// How often
        #[arg(long, value_name = "COUNT", default_value = "10", value_parser = count(1..))]
        kills: u32,
        /// Connections that click
        #[arg(long, value_name = "COUNT", default_value = "16", value_parser = count(1..=1000))]
        connections: u32,
        /// Clicks per second, all connections together
        #[arg(long, value_name = "COUNT", default_value = "500", value_parser = count(1..=100_000))]
        rate: u32,
    },
    /// Kafka stopped for a while
    #[command(
        after_help = "Examples:\n  ./dev soak kafka-outage\n  ./dev soak kafka-outage --seconds 3600 --rate 2000"
    )]
    KafkaOutage {
        /// For how long
        #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = count(1..))]
        seconds: u32,
        /// Connections that click
        #[arg(long, value_name = "COUNT", default_value = "16", value_parser = count(1..=1000))]
        connections: u32,
        /// Clicks per second, all connections together
        #[arg(long, value_name = "COUNT", default_value = "500", value_parser = count(1..=100_000))]
        rate: u32,
    },
    /// kill -9 of two dispatchers in turn at random moments, every third while it starts
    #[command(after_help = "Examples:\n  ./dev soak webhooks-kills\n  ./dev soak webhooks-kills --kills 3")]
    WebhooksKills {
        /// How often
        #[arg(long, value_name = "COUNT", default_value = "100", value_parser = count(1..))]
        kills: u32,
        /// Connections that click
        #[arg(long, value_name = "COUNT", default_value = "16", value_parser = count(1..=1000))]
        connections: u32,
        /// Clicks per second, all connections together; each is one delivery
        #[arg(long, value_name = "COUNT", default_value = "200", value_parser = count(1..=100_000))]
        rate: u32,
    },
    /// Kafka stopped for a while, then Postgres
    #[command(
        after_help = "Examples:\n  ./dev soak webhooks-outages\n  ./dev soak webhooks-outages --seconds 600"
    )]
    WebhooksOutages {
        /// For how long each
        #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = count(1..))]
        seconds: u32,
        /// Connections that click
        #[arg(long, value_name = "COUNT", default_value = "16", value_parser = count(1..=1000))]
        connections: u32,
        /// Clicks per second, all connections together; each is one delivery
        #[arg(long, value_name = "COUNT", default_value = "100", value_parser = count(1..=100_000))]
        rate: u32,
    },
    /// kill -9 of the primary of Postgres, and promotion of its standby
    #[command(after_help = "Examples:\n  ./dev soak postgres-promotion --rate 200")]
    PostgresPromotion {
        /// Connections that click
        #[arg(long, value_name = "COUNT", default_value = "16", value_parser = count(1..=1000))]
        connections: u32,
        /// Clicks per second, all connections together; each is one delivery
        #[arg(long, value_name = "COUNT", default_value = "100", value_parser = count(1..=100_000))]
        rate: u32,
    },
    /// Every delivery's signature checked by the example receiver in Python
    #[command(
        after_help = "Examples:\n  ./dev soak webhooks-verify\n  ./dev soak webhooks-verify --events 1000"
    )]
    WebhooksVerify {
        /// Minimum number of clicks; events of links come on top
        #[arg(long, value_name = "COUNT", default_value = "10000", value_parser = count(1..))]
        events: u32,
        /// Connections that click
        #[arg(long, value_name = "COUNT", default_value = "16", value_parser = count(1..=1000))]
        connections: u32,
        /// Clicks per second, all connections together
        #[arg(long, value_name = "COUNT", default_value = "200", value_parser = count(1..=100_000))]
        rate: u32,
    },
    /// kill -9 of the API half way through an import of links; reports its memory
    #[command(after_help = "Examples:\n  ./dev soak --release import\n  ./dev soak import --rows 1000")]
    Import {
        /// Rows of the file
        #[arg(long, value_name = "COUNT", default_value = "1000000", value_parser = count(100..=1_000_000))]
        rows: u32,
    },
    /// Endpoints that never answer beside as many that do; then more clicks than an endpoint can take, beside a
    /// neighbour
    #[command(after_help = "Examples:\n  ./dev soak --release webhooks-isolation\n  \
        ./dev soak webhooks-isolation --workspaces 4 --clicks 3000 --seconds 10")]
    WebhooksIsolation {
        /// Workspaces, each with 8 black holes, 8 endpoints that answer and 2 clicks per second
        #[arg(long, value_name = "COUNT", default_value = "25", value_parser = count(1..=1000))]
        workspaces: u32,
        /// For how long these are clicked
        #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = count(20..))]
        seconds: u32,
        /// Clicks of the second part, at 2,000 per second, for an endpoint that takes 50 ms
        #[arg(long, value_name = "COUNT", default_value = "20000", value_parser = count(1_000..))]
        clicks: u32,
    },
    /// Programs of another release replaced by those of this build, and back; `.ci/upgrade` builds the last release's
    #[command(after_help = "Examples:\n  ./dev soak upgrade --former ~/hopline-0.1.0-linux-amd64")]
    Upgrade {
        /// The folder with the other release's programs
        #[arg(long, value_name = "FOLDER")]
        former: PathBuf,
        /// Connections that click
        #[arg(long, value_name = "COUNT", default_value = "16", value_parser = count(1..=1000))]
        connections: u32,
        /// Clicks per second, all connections together; each is one delivery
        #[arg(long, value_name = "COUNT", default_value = "100", value_parser = count(1..=100_000))]
        rate: u32,
    },
    /// kill -9 of the processor at random moments, every third while it starts; one record in 500 is invalid
    #[command(after_help = "Examples:\n  ./dev soak counts-processor-kills --kills 20")]
    CountsProcessorKills {
        /// How often
        #[arg(long, value_name = "COUNT", default_value = "200", value_parser = count(1..))]
        kills: u32,
        /// Clicks per second
        #[arg(long, value_name = "COUNT", default_value = "1000", value_parser = count(1..=100_000))]
        rate: u32,
    },
    /// kill -9 of ClickHouse at random moments of inserts
    #[command(after_help = "Examples:\n  ./dev soak counts-clickhouse-kills --kills 20")]
    CountsClickhouseKills {
        /// How often
        #[arg(long, value_name = "COUNT", default_value = "200", value_parser = count(1..))]
        kills: u32,
        /// Clicks per second
        #[arg(long, value_name = "COUNT", default_value = "1000", value_parser = count(1..=100_000))]
        rate: u32,
    },
    /// ClickHouse stopped for a while
    #[command(after_help = "Examples:\n  ./dev soak counts-clickhouse-outage --seconds 7200 --rate 500")]
    CountsClickhouseOutage {
        /// For how long
        #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = count(1..))]
        seconds: u32,
        /// Clicks per second
        #[arg(long, value_name = "COUNT", default_value = "1000", value_parser = count(1..=100_000))]
        rate: u32,
    },
    /// kill -9 of Kafka while clicks are counted
    #[command(after_help = "Examples:\n  ./dev soak counts-kafka-kills --kills 20")]
    CountsKafkaKills {
        /// How often
        #[arg(long, value_name = "COUNT", default_value = "10", value_parser = count(1..))]
        kills: u32,
        /// Clicks per second
        #[arg(long, value_name = "COUNT", default_value = "1000", value_parser = count(1..=100_000))]
        rate: u32,
    },
    /// SIGSTOP of one of two processors until the other has its partitions, then SIGCONT
    #[command(after_help = "Examples:\n  ./dev soak counts-stops --stops 10")]
    CountsStops {
        /// How often
        #[arg(long, value_name = "COUNT", default_value = "50", value_parser = count(1..))]
        stops: u32,
        /// Clicks per second
        #[arg(long, value_name = "COUNT", default_value = "1000", value_parser = count(1..=100_000))]
        rate: u32,
    },
    /// Up to four processors that join, leave and die; partitions are added, most clicks are on one link
    #[command(after_help = "Examples:\n  ./dev soak counts-members --changes 20")]
    CountsMembers {
        /// How often a processor joins, leaves or dies
        #[arg(long, value_name = "COUNT", default_value = "100", value_parser = count(1..))]
        changes: u32,
        /// Average seconds between two changes
        #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = count(1..))]
        pause: u32,
        /// Clicks per second
        #[arg(long, value_name = "COUNT", default_value = "1000", value_parser = count(1..=100_000))]
        rate: u32,
    },
    /// kill -9, SIGSTOP and lag of ClickHouse's replicas, ZooKeeper and processors, one after another
    #[command(
        after_help = "Examples:\n  ./dev soak counts-replicas --rounds 5\n  ./dev soak counts-replicas --replicas \
            3\n  ./dev soak counts-replicas --shards 2 --rounds 4"
    )]
    CountsReplicas {
        /// Shards of ClickHouse
        #[arg(long, value_name = "COUNT", default_value = "1", value_parser = clap::value_parser!(u8).range(1..=3))]
        shards: u8,
        /// Replicas of each shard
        #[arg(long, value_name = "COUNT", default_value = "2", value_parser = clap::value_parser!(u8).range(2..=5))]
        replicas: u8,
        /// How often each fault is injected
        #[arg(long, value_name = "COUNT", default_value = "3", value_parser = count(1..))]
        rounds: u32,
        /// Clicks per second
        #[arg(long, value_name = "COUNT", default_value = "1000", value_parser = count(1..=100_000))]
        rate: u32,
    },
    /// Rows per second of one, two and four processors that work off a backlog, most of it on one link
    #[command(after_help = "Examples:\n  ./dev soak --release counts-throughput --clicks 3000000")]
    CountsThroughput {
        /// Clicks of each backlog
        #[arg(
            long, value_name = "COUNT", default_value = "1000000",
            value_parser = clap::value_parser!(u64).range(1_000..)
        )]
        clicks: u64,
    },
}

/// The result when every click, or every row of a file, is complete.
const ON_TOPIC: &str = "every answered click is on the topic";
const DELIVERED: &str = "every answered click was delivered";
const COUNTED: &str = "every click of the topic is one row";
const UPGRADED: &str = "every answered click is one row and was delivered";
const IMPORTED: &str = "every row of the file is one link, or reported as rejected";

#[tokio::main]
async fn main() -> ExitCode {
    let command = devstack::usage::parse::<Cli>().command;
    // A panic is a result too.
    match AssertUnwindSafe(run(command)).catch_unwind().await {
        Ok((report, verdict)) => {
            say(&report);
            say(verdict);
            ExitCode::SUCCESS
        }
        // The panic's message was written to standard error.
        Err(_) => {
            say("FAILED");
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> (String, &'static str) {
    match command {
        Command::EdgeKills { kills, connections } => {
            (exact(&edge_kills(EdgeKills { kills, connections }).await), ON_TOPIC)
        }
        Command::KafkaKills { kills, connections, rate } => {
            (exact(&kafka_kills(KafkaKills { kills, connections, rate }).await), ON_TOPIC)
        }
        Command::KafkaOutage { seconds, connections, rate } => {
            let down = Duration::from_secs(seconds.into());
            let outage = kafka_outage(KafkaOutage { down, connections, rate }).await;
            outage.tally.is_exact();
            (outage.to_string(), ON_TOPIC)
        }
        Command::WebhooksKills { kills, connections, rate } => {
            let own = OwnEngines::start().await;
            let plan = WebhookKills { kills, connections, rate };
            (complete(&webhook_kills(own.isolated().await, plan).await), DELIVERED)
        }
        Command::WebhooksOutages { seconds, connections, rate } => {
            let down = Duration::from_secs(seconds.into());
            (complete(&webhook_outages(WebhookOutages { down, connections, rate }).await), DELIVERED)
        }
        Command::PostgresPromotion { connections, rate } => {
            (complete(&promotion(Promotion { connections, rate }).await), DELIVERED)
        }
        Command::WebhooksVerify { events, connections, rate } => {
            let own = OwnEngines::start().await;
            let plan = WebhookVerify { events, connections, rate };
            let verified = webhook_verify(own.isolated().await, plan).await;
            verified.is_exact();
            (verified.to_string(), DELIVERED)
        }
        Command::Import { rows } => {
            let own = OwnEngines::start().await;
            (import_kill(own.isolated().await, ImportKill { rows }).await.to_string(), IMPORTED)
        }
        Command::WebhooksIsolation { workspaces, seconds, clicks } => {
            let own = OwnEngines::start().await;
            let rate = 2;
            let holes = WebhookHoles { workspaces, each: 8, clicks: rate * seconds, rate };
            let beside = webhook_holes(own.isolated().await, holes).await;
            progress(&beside.to_string());
            beside.no_delivery_waited();
            let flood = WebhookFlood { clicks, connections: 32, rate: Some(2_000) };
            let flooded = webhook_flood(own.isolated().await, flood).await;
            flooded.is_contained();
            (format!("{beside}\n{flooded}"), DELIVERED)
        }
        Command::Upgrade { former, connections, rate } => {
            let own = OwnEngines::start().await;
            let upgraded = upgrade(own.empty().await, &Upgrade { former, connections, rate }).await;
            upgraded.is_complete();
            (upgraded.to_string(), UPGRADED)
        }
        // Each of these panics unless every click is exactly one row.
        Command::CountsProcessorKills { kills, rate } => {
            (counts_processor_kills(ProcessorKills { kills, rate }).await.to_string(), COUNTED)
        }
        Command::CountsReplicas { shards, replicas, rounds, rate } => {
            let plan = ReplicaFaults { shards: shards.into(), replicas: replicas.into(), rounds, rate };
            (counts_replica_faults(plan).await.to_string(), COUNTED)
        }
        Command::CountsClickhouseKills { kills, rate } => {
            (counts_clickhouse_kills(ClickhouseKills { kills, rate }).await.to_string(), COUNTED)
        }
        Command::CountsClickhouseOutage { seconds, rate } => {
            let down = Duration::from_secs(seconds.into());
            (counts_clickhouse_outage(ClickhouseOutage { down, rate }).await.to_string(), COUNTED)
        }
        Command::CountsKafkaKills { kills, rate } => {
            (counts_kafka_kills(CountsKafkaKills { kills, rate }).await.to_string(), COUNTED)
        }
        Command::CountsStops { stops, rate } => {
            (counts_stops(Stops { stops, rate }).await.to_string(), COUNTED)
        }
        Command::CountsMembers { changes, pause, rate } => {
            let pause = Duration::from_secs(pause.into());
            (counts_members(Members { changes, pause, rate }).await.to_string(), COUNTED)
        }
        Command::CountsThroughput { clicks } => (counts_throughput(Throughput { clicks }).await, COUNTED),
    }
}

fn complete(arrivals: &Arrivals) -> String {
    arrivals.are_complete();
    arrivals.to_string()
}

fn exact(tally: &Tally) -> String {
    tally.is_exact();
    tally.to_string()
}

fn say(line: &str) {
    // Ignores a closed output, as after `| head`.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_commands_are_consistent() {
        Cli::command().debug_assert();
    }
}

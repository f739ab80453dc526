//! The `ingest` program.

use std::process::ExitCode;

use ingest::{Config, spool};
use service::process::{self, Context, bind};

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == "spool") {
        return spool::command::main();
    }
    process::main("ingest", ingest::METRICS, |config: Config, context: Context| async move {
        let listener = bind("HOPLINE_EDGE_LISTEN", config.listen).await?;
        let operations = bind("HOPLINE_INGEST_OPERATIONS_LISTEN", config.operations_listen).await?;
        ingest::run(config, listener, operations, context.metrics, context.shutdown).await
    })
}

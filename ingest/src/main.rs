//! The `ingest` program.

use std::process::ExitCode;

use ingest::Config;
use service::process::{self, Context, bind};

fn main() -> ExitCode {
    process::main("ingest", env!("CARGO_PKG_VERSION"), |config: Config, context: Context| async move {
        let listener = bind("HOPLINE_EDGE_LISTEN", config.listen).await?;
        let operations = bind("HOPLINE_INGEST_OPERATIONS_LISTEN", config.operations_listen).await?;
        ingest::run(config, listener, operations, context.metrics, context.shutdown).await
    })
}

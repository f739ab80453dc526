//! The dispatcher process.

use std::process::ExitCode;

use dispatcher::Config;
use service::process;

fn main() -> ExitCode {
    process::main("dispatcher", dispatcher::METRICS, |config: Config, context| async move {
        let operations =
            process::bind("HOPLINE_DISPATCHER_OPERATIONS_LISTEN", config.operations_listen).await?;
        dispatcher::run(config, operations, context.metrics, context.shutdown).await
    })
}

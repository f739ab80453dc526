//! The `processor` program.

use std::process::ExitCode;

use processor::Config;
use service::process::{self, Context, bind};

fn main() -> ExitCode {
    process::main("processor", env!("CARGO_PKG_VERSION"), |config: Config, context: Context| async move {
        let operations = bind("HOPLINE_PROCESSOR_OPERATIONS_LISTEN", config.operations_listen).await?;
        processor::run(config, operations, context.metrics, context.shutdown).await
    })
}

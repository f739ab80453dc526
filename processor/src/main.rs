//! The `processor` program.

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use processor::Program;
use service::process::{self, Context, bind};

fn main() -> ExitCode {
    let answered = Arc::new(OnceLock::new());
    let answer_code = Arc::clone(&answered);
    let code = process::main(
        "processor",
        processor::METRICS,
        |Program { command, config }: Program, Context { shutdown, metrics }| async move {
            let Some(command) = command else {
                let operations =
                    bind("HOPLINE_PROCESSOR_OPERATIONS_LISTEN", config.operations_listen).await?;
                return processor::run(config, operations, metrics, shutdown).await;
            };
            let answer = tokio::select! {
                answer = processor::operate(config, command) => answer?,
                () = shutdown.wait() => anyhow::bail!("stopped before the command finished"),
            };
            // Only the answer goes to standard output, so that scripts can read it.
            if !answer.text.is_empty() {
                writeln!(std::io::stdout(), "{}", answer.text.trim_end())?;
            }
            let _ = answer_code.set(answer.code);
            Ok(())
        },
    );
    answered.get().map_or(code, |code| ExitCode::from(*code))
}

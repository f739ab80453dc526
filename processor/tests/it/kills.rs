//! The program itself, killed without warning.

use std::process::{Child, Command, Stdio};

use schemas::grants::User;
use tests::engines::{Isolated, isolated};
use tests::eventually;

use crate::clicks::{Edge, counted_exactly};

/// The program as an operator starts it; killed when the test ends, however it ends.
struct Program(Child);

impl Program {
    fn start(isolated: &Isolated) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_processor"))
            .envs(isolated.variables_of(User::Processor))
            .env("HOPLINE_PROCESSOR_OPERATIONS_LISTEN", "127.0.0.1:0")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SIGKILL: the program neither finishes an insert nor commits.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn rows(isolated: &Isolated) -> usize {
    isolated.clickhouse("SELECT count() FROM clicks").await.trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_processor_neither_loses_nor_repeats_a_click() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    let mut sent = 0;
    for round in 0..3 {
        let program = Program::start(&isolated);
        let before = rows(&isolated).await;
        eventually("rows of this process", async || {
            edge.send_many(&format!("round-{round}-{sent}"), 300).await;
            sent += 300;
            // The kill comes in the middle of a stream of inserts.
            let new = rows(&isolated).await - before;
            if new > 0 { Ok(()) } else { Err(new) }
        })
        .await;
        drop(program);
    }
    let program = Program::start(&isolated);
    counted_exactly(&isolated, sent).await;
    drop(program);
}

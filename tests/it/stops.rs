//! SIGTERM of each program: it ends with exit code 0 within its deadline and loses nothing.

use devstack::Server;
use tests::deployment::Deployment;
use tests::signals::stop;

use crate::traffic::Traffic;

#[tokio::test(flavor = "multi_thread")]
async fn each_program_exits_with_0_on_sigterm_and_nothing_is_lost() {
    let deployment = Deployment::start().await;
    let mut traffic = Traffic::on_links(&deployment, 5, 20).await;
    let programs: [fn(&Deployment) -> &Server; 4] = [
        |deployment| &deployment.ingest,
        |deployment| &deployment.processor,
        |deployment| &deployment.api,
        |deployment| &deployment.dispatcher,
    ];
    for program in programs {
        for _ in 0..50 {
            assert!(traffic.click(&deployment).await);
        }
        let program = program(&deployment);
        stop(program).await;
        program.start().await.unwrap();
    }
    assert_eq!(traffic.answered(), 200);
    traffic.is_counted(&deployment).await;
}

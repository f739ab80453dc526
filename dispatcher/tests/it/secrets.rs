//! Rotated secrets, and a secret that cannot be decrypted.

use schemas::message::Class;
use tests::eventually;
use tests::receiver::{Answer, Receiver};

use crate::world::{SECRET, SECRET_KEYS, World};

const NEW_SECRET: &str = "whsec_bmV3IG5ldyBuZXcgbmV3IG5ldyBuZXcgbmV3IG5ldyE=";

#[tokio::test(flavor = "multi_thread")]
async fn both_secrets_sign_for_a_day_after_a_rotation() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Status(200)).await;
    let workspace = world.workspace("business").await;
    let endpoint = world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    world.rotate(endpoint, NEW_SECRET, SECRET_KEYS).await;
    let dispatcher = world.dispatcher().await;
    let delivered = async |expected: usize| {
        world.click(workspace, Class::Human).await;
        eventually("it arrives", async || match receiver.requests() {
            requests if requests.len() == expected => Ok(requests[expected - 1].clone()),
            requests => Err(requests.len()),
        })
        .await
    };
    let request = delivered(1).await;
    let [new, former] = request.signatures().try_into().unwrap();
    assert!(new.is_signed_with(NEW_SECRET) && former.is_signed_with(SECRET), "{request:?}");
    sqlx::query("UPDATE webhook_endpoints SET previous_secret_until = now()")
        .execute(&world.pool)
        .await
        .unwrap();
    assert!(delivered(2).await.is_signed_with(NEW_SECRET));
    dispatcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_under_an_unknown_key_delays_only_its_own_deliveries() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Status(200)).await;
    let workspace = world.workspace("business").await;
    let sealed = world.endpoint(workspace, &receiver.url("/sealed"), &["click.created"]).await;
    world.endpoint(workspace, &receiver.url("/open"), &["click.created"]).await;
    let other_key = SECRET_KEYS.replacen("1:", "9:", 1);
    world.rotate(sealed, NEW_SECRET, &other_key).await;
    let dispatcher = world.dispatcher().await;
    for _ in 0..20 {
        world.click(workspace, Class::Human).await;
    }
    receiver.receives_at("/open", 20).await;
    let put_off = "SELECT count(*) FROM webhook_deliveries
                   WHERE attempts = 0 AND lease_token IS NULL AND due_at > now() + interval '30 seconds'";
    eventually("its own wait", async || match world.number(put_off).await {
        20 => Ok(()),
        count => Err(count),
    })
    .await;
    assert_eq!(receiver.requests_to("/sealed").len(), 0);
    dispatcher.stop().await;

    // The operator adds the key.
    sqlx::query("UPDATE webhook_deliveries SET due_at = now()").execute(&world.pool).await.unwrap();
    let keys = format!("{SECRET_KEYS},{other_key}").parse().unwrap();
    let dispatcher = world.dispatcher_with(|config| config.secret_keys = keys).await;
    world.done().await;
    assert_eq!(receiver.requests_to("/sealed").len(), 20);
    assert_eq!(world.state(sealed).await, ("enabled".to_owned(), 0));
    dispatcher.stop().await;
}

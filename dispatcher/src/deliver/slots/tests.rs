//! Distribution of permits when there are not enough.

use proptest::prelude::*;
use uuid::Uuid;

use super::*;

const LIMITS: Limits = Limits { per_endpoint: 32, per_account: 128, per_process: 1024, bytes: 1 << 20 };

fn endpoint(number: u128) -> EndpointId {
    EndpointId::from_uuid(Uuid::from_u128(number))
}

/// Twenty endpoints share an account.
fn account(number: u128) -> AccountId {
    AccountId::from_uuid(Uuid::from_u128(number / 20))
}

fn wake(slots: &mut Slots, number: u128) {
    slots.wake(endpoint(number), account(number), false);
}

/// Wakes an endpoint, and lets one of its attempts succeed.
fn prove(slots: &mut Slots, number: u128) {
    let grant = slots.offer(endpoint(number), account(number), 1).unwrap();
    slots.claimed(grant, Claim { firsts: 1, ..Claim::default() });
    end(slots, number, Some(Standing::Proven));
    // It used everything that it was granted, so it waits for more, but has no further delivery.
    let grants = slots.grant();
    assert_eq!(grants.len(), 1);
    slots.claimed(grants[0], Claim::default());
}

fn end(slots: &mut Slots, number: u128, standing: Option<Standing>) {
    slots.ended(Permit { endpoint_id: endpoint(number), is_first: true, bytes: 0 }, standing, SEND_WITHIN);
}

/// Takes every grant with as many first attempts as allowed, and returns how many each endpoint got.
fn use_all(slots: &mut Slots) -> HashMap<u128, usize> {
    let mut used = HashMap::new();
    loop {
        let grants = slots.grant();
        let mut any = false;
        for grant in grants {
            slots.claimed(grant, Claim { firsts: grant.firsts, ..Claim::default() });
            *used.entry(grant.endpoint_id.uuid().as_u128()).or_default() += grant.firsts;
            any |= grant.firsts > 0;
        }
        if !any {
            return used;
        }
    }
}

#[tokio::test]
async fn an_endpoint_gets_few_permits_until_it_answers() {
    let mut slots = Slots::new(LIMITS);
    wake(&mut slots, 1);
    assert_eq!(use_all(&mut slots), HashMap::from([(1, UNKNOWN_PERMITS)]));
    end(&mut slots, 1, Some(Standing::Proven));
    assert_eq!(use_all(&mut slots)[&1], 32 - UNKNOWN_PERMITS + 1);
    end(&mut slots, 1, Some(Standing::Failing));
    assert_eq!(use_all(&mut slots), HashMap::new());
}

#[tokio::test]
async fn more_is_claimed_for_faster_endpoints() {
    let mut slots = Slots::new(LIMITS);
    prove(&mut slots, 1);
    let permit = Permit { endpoint_id: endpoint(1), is_first: true, bytes: 0 };
    for (took, ahead) in [(Duration::from_millis(1), AHEAD), (Duration::from_secs(5), 1)] {
        for _ in 0..40 {
            let grant = slots.offer(endpoint(1), account(1), 2).unwrap();
            slots.claimed(grant, Claim { firsts: 1, ..Claim::default() });
            slots.ended(permit, Some(Standing::Proven), took);
        }
        wake(&mut slots, 1);
        let used = use_all(&mut slots)[&1];
        assert_eq!(used, 32 * ahead, "{took:?}");
        (0..used).for_each(|_| slots.ended(permit, None, took));
        slots.grant().into_iter().for_each(|grant| slots.claimed(grant, Claim::default()));
    }
}

#[tokio::test]
async fn a_full_endpoint_does_not_delay_another() {
    let mut slots = Slots::new(LIMITS);
    prove(&mut slots, 1);
    wake(&mut slots, 1);
    assert_eq!(use_all(&mut slots)[&1], 32);
    prove(&mut slots, 2);
    wake(&mut slots, 2);
    assert_eq!(use_all(&mut slots), HashMap::from([(2, 32)]));
}

#[tokio::test]
async fn endpoints_that_never_answer_leave_half_of_the_permits() {
    let mut slots = Slots::new(LIMITS);
    prove(&mut slots, 1);
    for number in 1_000..3_000 {
        wake(&mut slots, number);
    }
    let black_holes: usize = use_all(&mut slots).values().sum();
    assert_eq!(black_holes, 512);
    // However many are waiting, an endpoint that answers goes first.
    wake(&mut slots, 1);
    assert_eq!(use_all(&mut slots)[&1], 32);
}

#[tokio::test]
async fn failing_endpoints_leave_permits_for_unknown_ones() {
    let mut slots = Slots::new(LIMITS);
    for number in 1_000..3_000 {
        wake(&mut slots, number);
    }
    let mut held: Vec<u128> =
        use_all(&mut slots).into_iter().flat_map(|(number, count)| vec![number; count]).collect();
    for number in held.drain(..) {
        end(&mut slots, number, Some(Standing::Failing));
    }
    let failing: HashMap<u128, usize> = use_all(&mut slots);
    assert!(failing.values().sum::<usize>() <= 512, "{}", failing.len());
    for number in failing.keys() {
        slots.slow(endpoint(*number), Instant::now());
    }
    for (number, count) in failing {
        (0..count).for_each(|_| end(&mut slots, number, Some(Standing::Failing)));
    }
    // Failing endpoints, and a new one.
    (1_000..3_000).for_each(|number| slots.stands(endpoint(number), Standing::Failing));
    let failing: usize = use_all(&mut slots).values().sum();
    assert_eq!(failing, 256);
    wake(&mut slots, 1);
    assert_eq!(use_all(&mut slots), HashMap::from([(1, UNKNOWN_PERMITS)]));
}

#[tokio::test]
async fn a_slow_attempt_makes_its_endpoint_failing_unless_another_succeeded() {
    let mut slots = Slots::new(LIMITS);
    let begun = Instant::now();
    wake(&mut slots, 1);
    use_all(&mut slots);
    slots.slow(endpoint(1), begun);
    assert_eq!(slots.endpoints[&endpoint(1)].standing, Standing::Failing);
    end(&mut slots, 1, Some(Standing::Proven));
    slots.slow(endpoint(1), begun);
    assert_eq!(slots.endpoints[&endpoint(1)].standing, Standing::Proven);
    slots.slow(endpoint(1), Instant::now());
    assert_eq!(slots.endpoints[&endpoint(1)].standing, Standing::Failing);
}

#[tokio::test]
async fn first_attempts_leave_a_quarter_of_the_permits_to_retries() {
    let mut slots = Slots::new(Limits { per_endpoint: 64, per_account: 8, per_process: 8, bytes: 1 });
    prove(&mut slots, 1);
    wake(&mut slots, 1);
    assert_eq!(use_all(&mut slots)[&1], 48);
    assert_eq!(slots.grant(), []);
    slots.wake(endpoint(1), account(1), true);
    let grants = slots.grant();
    assert_eq!(grants, [Grant { endpoint_id: endpoint(1), slots: 16, firsts: 0 }]);
    slots.claimed(grants[0], Claim { retries: 16, ..Claim::default() });
    assert_eq!(slots.in_flight(), 64);
}

#[tokio::test]
async fn an_account_cannot_take_the_permits_of_others() {
    let mut slots = Slots::new(Limits { per_account: 128 / AHEAD, ..LIMITS });
    for number in 0..20 {
        prove(&mut slots, number);
    }
    (0..20).for_each(|number| wake(&mut slots, number));
    let used: usize = use_all(&mut slots).values().sum();
    assert_eq!(used, 96, "three quarters of 128: the rest is for retries");
    prove(&mut slots, 20);
    wake(&mut slots, 20);
    assert_eq!(use_all(&mut slots)[&20], 32);
}

#[tokio::test]
async fn nothing_more_is_claimed_while_too_many_bytes_are_in_memory() {
    let mut slots = Slots::new(LIMITS);
    wake(&mut slots, 1);
    wake(&mut slots, 21);
    let grants = slots.grant();
    assert_eq!(grants.len(), 2);
    slots.claimed(grants[0], Claim { firsts: 1, bytes: 1 << 20, ..Claim::default() });
    slots.claimed(grants[1], Claim { firsts: grants[1].firsts, ..Claim::default() });
    assert_eq!(slots.grant(), []);
    assert_eq!(slots.offer(endpoint(41), account(41), 1), None);
    slots.ended(Permit { endpoint_id: endpoint(1), is_first: true, bytes: 1 << 20 }, None, SEND_WITHIN);
    assert!(slots.offer(endpoint(41), account(41), 1).is_some());
}

#[tokio::test]
async fn new_deliveries_do_not_overtake_waiting_ones() {
    let mut slots = Slots::new(LIMITS);
    wake(&mut slots, 1);
    assert_eq!(slots.offer(endpoint(1), account(1), 1), None);
}

proptest! {
    #[test]
    fn permits_are_never_lost_or_doubled(
        steps in prop::collection::vec((0..6_u8, 0..30_u128, 0..4_usize), 1..300)
    ) {
        let bounds = Limits { per_endpoint: 8, per_account: 24, per_process: 40, bytes: 1 << 20 };
        let mut slots = Slots::new(bounds);
        let mut held: Vec<Permit> = Vec::new();
        for (step, number, amount) in steps {
            match step {
                0 => slots.wake(endpoint(number), account(number), amount == 0),
                1 | 2 => for grant in slots.grant() {
                    let retries = amount.min(grant.slots);
                    let firsts = grant.firsts.min(grant.slots - retries);
                    slots.claimed(grant, Claim { retries, firsts, bytes: 0 });
                    let permit = |is_first| Permit { endpoint_id: grant.endpoint_id, is_first, bytes: 0 };
                    held.extend((0..retries).map(|_| permit(false)));
                    held.extend((0..firsts).map(|_| permit(true)));
                },
                3 => if let Some(grant) = slots.offer(endpoint(number), account(number), amount) {
                    slots.unused(grant);
                },
                4 => slots.slow(endpoint(number), Instant::now()),
                _ => if !held.is_empty() {
                    let permit = held.swap_remove(usize::try_from(number).unwrap() % held.len());
                    let known = [Standing::Proven, Standing::Failing, Standing::Unknown];
                    let standing = amount.checked_sub(1).map(|index| known[index]);
                    slots.ended(permit, standing, SEND_WITHIN);
                },
            }
            prop_assert_eq!(slots.in_flight(), held.len());
            prop_assert!(slots.in_flight() <= bounds.per_process * AHEAD);
            for endpoint in slots.endpoints.values() {
                prop_assert!(endpoint.in_flight <= bounds.per_endpoint * AHEAD);
            }
        }
        for permit in held {
            slots.ended(permit, None, SEND_WITHIN);
        }
        prop_assert_eq!(slots.process, Pool::default());
        prop_assert!(slots.accounts.is_empty());
    }
}

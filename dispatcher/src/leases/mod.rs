//! Leases of deliveries: new deliveries are leased when they are stored, and leases of dead dispatchers are released.

pub(crate) mod handover;
mod presence;

pub(crate) use presence::watch_over;

//! Who holds which deliveries: new ones are leased as they come in, and those of dead dispatchers are taken over.

pub(crate) mod handover;
mod presence;

pub(crate) use presence::watch_over;

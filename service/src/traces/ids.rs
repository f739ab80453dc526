//! The ids of a trace, and the choice of what is traced. Both follow from the id of the click or event.

use std::str::FromStr;

use sha2::{Digest as _, Sha256};

/// The ids of a trace, none of them zero, which would be invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ids {
    /// The trace's id.
    pub(super) trace: u128,
    /// The id of its root span.
    pub(super) root: u64,
}

impl Ids {
    /// Returns the ids of the trace of a click or event: the first 32 hexadecimal digits of its id's SHA-256, and the
    /// next 16.
    ///
    /// A hash and not the id itself, because the holder of a click id may register a conversion for it.
    pub(super) fn of(id: &str) -> Self {
        let digest: [u8; 32] = Sha256::digest(id).into();
        let (mut trace, mut root) = ([0; 16], [0; 8]);
        trace.copy_from_slice(&digest[..16]);
        root.copy_from_slice(&digest[16..24]);
        Self { trace: u128::from_be_bytes(trace).max(1), root: u64::from_be_bytes(root).max(1) }
    }
}

/// The share of traces that are recorded, as a limit of 63 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ratio(u64);

/// The error for anything but a number from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a number from 0 to 1")]
pub(super) struct RatioFault;

impl Ratio {
    /// Returns whether a trace is recorded; the same as OpenTelemetry's sampler `traceidratio`.
    pub(super) fn includes(self, ids: Ids) -> bool {
        (ids.trace as u64) >> 1 < self.0
    }
}

impl FromStr for Ratio {
    type Err = RatioFault;

    fn from_str(text: &str) -> Result<Self, RatioFault> {
        match text.parse::<f64>() {
            Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(Self((ratio * (1_u64 << 63) as f64) as u64)),
            _ => Err(RatioFault),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(text: &str) -> Ratio {
        text.parse().unwrap()
    }

    fn included(text: &str) -> usize {
        (0..10_000).filter(|number| ratio(text).includes(Ids::of(&format!("click {number}")))).count()
    }

    #[test]
    fn the_derivation_never_changes() {
        // Services of two versions work on one click. Computed with sha256sum.
        let ids = Ids::of("AQGSbz58G3t-mlEvHTxLWmkBoMRQbHsJCQkJCQkJCQkJMvFk5fAerVRhyH4v");
        assert_eq!(format!("{:032x} {:016x}", ids.trace, ids.root), GOLDEN);
    }

    const GOLDEN: &str = "5caff73189f5135d759b6b48b913b81f b0a2769569806540";

    #[test]
    fn a_ratio_includes_its_share_and_all_of_lower_ratios() {
        assert_eq!(included("0"), 0);
        assert_eq!(included("1"), 10_000);
        assert!((80..=120).contains(&included("0.01")), "{}", included("0.01"));
        assert!((4_850..=5_150).contains(&included("0.5")), "{}", included("0.5"));
        for number in 0..10_000 {
            let ids = Ids::of(&number.to_string());
            assert!(ratio("0.5").includes(ids) || !ratio("0.01").includes(ids));
        }
        let largest = Ids { trace: u128::MAX, root: 1 };
        assert!(ratio("1").includes(largest) && !ratio("0.999").includes(largest));
    }

    #[test]
    fn a_ratio_is_from_0_to_1() {
        for invalid in ["", "-0.1", "1.1", "NaN", "inf", "1%", "always"] {
            assert_eq!(invalid.parse::<Ratio>(), Err(RatioFault), "{invalid}");
        }
    }
}

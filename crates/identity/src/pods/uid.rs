//! [`PodUid`]: the UID of a pod.

use std::fmt;

/// The UID of a pod: a UUID that the API server gives to each pod that it creates. Never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodUid(u128);

/// Digits between the dashes of a UUID.
const GROUPS: [usize; 5] = [8, 4, 4, 4, 12];

impl PodUid {
    /// Parses a UUID with dashes, as the API server writes it, with underscores, as in the names of systemd's slices, or
    /// without either, as the kubelet names static pods.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let digits = match bytes.len() {
            32 => text.to_owned(),
            36 => {
                let separator = char::from(bytes[GROUPS[0]]);
                let groups: Vec<&str> = text.split(separator).collect();
                let is_uuid = matches!(separator, '-' | '_') && groups.iter().map(|group| group.len()).eq(GROUPS);
                is_uuid.then(|| groups.concat())?
            }
            _ => return None,
        };
        // `from_str_radix` also takes a sign.
        let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_hex.then(|| u128::from_str_radix(&digits, 16).ok()).flatten().map(Self)
    }
}

/// Formats the UUID with dashes.
impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:032x}", self.0);
        let mut rest = digits.as_str();
        for (number, length) in GROUPS.into_iter().enumerate() {
            let (group, after) = rest.split_at(length);
            write!(f, "{}{group}", if number == 0 { "" } else { "-" })?;
            rest = after;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UID: &str = "6f0a9d3e-5b1c-4c7e-9d51-0a1b2c3d4e5f";

    #[test]
    fn all_three_forms_are_the_same_pod() {
        let uid = PodUid::parse(UID).expect("a UUID");
        assert_eq!(PodUid::parse(&UID.replace('-', "_")), Some(uid));
        assert_eq!(PodUid::parse(&UID.replace('-', "")), Some(uid));
        assert_eq!(uid.to_string(), UID);
    }

    #[test]
    fn anything_else_is_no_uid() {
        for text in ["", "6f0a9d3e", "6f0a9d3e-5b1c_4c7e-9d51-0a1b2c3d4e5f", "6f0a9d3e5b1c4c7e9d510a1b2c3d4e5g"] {
            assert_eq!(PodUid::parse(text), None, "{text}");
        }
        assert_eq!(PodUid::parse("+f0a9d3e5b1c4c7e9d510a1b2c3d4e5f"), None);
        assert_eq!(PodUid::parse("6f0a9d3ea5b1ca4c7ea9d51a0a1b2c3d4e5f"), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(uid: u128) {
            let uid = PodUid(uid);
            prop_assert_eq!(PodUid::parse(&uid.to_string()), Some(uid));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,40}") {
            let _ = PodUid::parse(&text);
        }
    }
}

//! The subset of DER that a certificate needs.

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_ID: u8 = 0x06;

/// A value with this tag.
pub(super) fn value(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    let length = content.len().to_be_bytes();
    let digits = &length[length.iter().take_while(|byte| **byte == 0).count()..];
    match digits {
        [] => out.push(0),
        [short @ 0..=0x7f] => out.push(*short),
        long => {
            // At most eight digits.
            out.push(0x80 | long.len().to_le_bytes()[0]);
            out.extend_from_slice(long);
        }
    }
    out.extend_from_slice(content);
    out
}

/// A SEQUENCE.
pub(super) fn sequence(parts: &[Vec<u8>]) -> Vec<u8> {
    value(SEQUENCE, &parts.concat())
}

/// A SET with one element.
pub(super) fn set(part: &[u8]) -> Vec<u8> {
    value(SET, part)
}

/// An OBJECT IDENTIFIER, from its encoded content.
pub(super) fn object_id(content: &[u8]) -> Vec<u8> {
    value(OBJECT_ID, content)
}

/// An INTEGER with these bytes. The highest bit of the first byte must be clear.
pub(super) fn integer(digits: &[u8]) -> Vec<u8> {
    value(0x02, digits)
}

/// A BOOLEAN that is true.
pub(super) fn yes() -> Vec<u8> {
    value(0x01, &[0xff])
}

/// A BIT STRING with this number of unused bits in its last byte.
pub(super) fn bits(unused: u8, content: &[u8]) -> Vec<u8> {
    value(0x03, &[&[unused], content].concat())
}

/// An OCTET STRING.
pub(super) fn octets(content: &[u8]) -> Vec<u8> {
    value(0x04, content)
}

/// A `UTF8String`.
pub(super) fn text(content: &str) -> Vec<u8> {
    value(0x0c, content.as_bytes())
}

/// A `UTCTime`.
pub(super) fn time(content: &str) -> Vec<u8> {
    value(0x17, content.as_bytes())
}

/// A constructed value with a context-specific tag.
pub(super) fn explicit(number: u8, content: &[u8]) -> Vec<u8> {
    value(0xa0 | number, content)
}

/// A primitive value with a context-specific tag.
pub(super) fn implicit(number: u8, content: &[u8]) -> Vec<u8> {
    value(0x80 | number, content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_a_short_and_a_long_form() {
        for (length, head) in [
            (0, &[4, 0][..]),
            (0x7f, &[4, 0x7f]),
            (0x80, &[4, 0x81, 0x80]),
            (0xff, &[4, 0x81, 0xff]),
            (0x100, &[4, 0x82, 1, 0]),
        ] {
            let value = octets(&vec![9; length]);
            assert_eq!((&value[..head.len()], value.len()), (head, head.len() + length));
        }
    }
}

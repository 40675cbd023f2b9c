//! Names of keys that stand beside a lock, in the lock's own slot of a Redis Cluster.
//!
//! They start with `fence:`, so that a pattern that lists a service's locks does not list its counters.
//! Redis hashes what stands between the first `{` and the next `}`, if that is not empty, and the whole key
//! otherwise. So a key with such a tag keeps its slot, a key without braces becomes the tag, and for what
//! remains (`{`, `}x`, `{}`) a number is searched for.

use std::iter;

const PREFIX: &[u8] = b"fence:";

pub(super) fn fence_counter(key: &[u8]) -> Vec<u8> {
    if tag(key).is_some() {
        return [PREFIX, key, b":"].concat();
    }
    if !key.iter().any(|byte| matches!(byte, b'{' | b'}')) {
        return [PREFIX, b"{", key, b"}"].concat();
    }
    let wanted = slot(key);
    (0_u32..)
        .map(|number| [PREFIX, key, format!(":{number}").as_bytes()].concat())
        .find(|counter| slot(counter) == wanted)
        .unwrap_or_default()
}

fn tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|&byte| byte == b'{')?;
    let tail = &key[open + 1..];
    let close = tail.iter().position(|&byte| byte == b'}')?;
    (close > 0).then(|| &tail[..close])
}

fn slot(key: &[u8]) -> u16 {
    crc16(tag(key).unwrap_or(key)) % 16_384
}

/// CRC-16/XMODEM, as Redis Cluster uses it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        let crc = crc ^ (u16::from(byte) << 8);
        iter::successors(Some(crc), |&crc| {
            Some(if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 })
        })
        .nth(8)
        .unwrap_or(crc)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_one_of_the_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
    }

    // B50
    #[test]
    fn the_counter_shares_the_slot_of_its_lock_for_any_text() {
        for key in ["42", "a{b}c", "{}", "}{", "{}x", "x}y", "{", "}", "{{}}", "{a", "o:{eu}:{1}", "{}{x}"] {
            let counter = fence_counter(key.as_bytes());
            assert_eq!(slot(&counter), slot(key.as_bytes()), "{key}");
            assert_ne!(counter, key.as_bytes());
        }
    }

    #[test]
    fn different_locks_have_different_counters() {
        assert_ne!(fence_counter(b"a"), fence_counter(b"{a}"));
        assert_ne!(fence_counter(b"{}"), fence_counter(b"}"));
        assert_eq!(fence_counter(b"orders:order:42"), b"fence:{orders:order:42}");
    }
}

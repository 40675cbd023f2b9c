//! Just enough of Redis' protocol to tell where one command or reply ends and the next begins.

/// The length of the first complete value in `bytes`, or `None` while part of it is missing.
///
/// Knows RESP2 and RESP3.
pub(crate) fn frame_len(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let body = line + 2;
    let number = || -> i64 {
        let text = std::str::from_utf8(&bytes[1..line]).unwrap_or_default();
        text.parse().unwrap_or_else(|_| panic!("not a RESP length: {text:?}"))
    };
    match bytes[0] {
        b'+' | b'-' | b':' | b',' | b'#' | b'_' | b'(' => Some(body),
        b'$' | b'=' | b'!' => match usize::try_from(number()) {
            Ok(length) => Some(body + length + 2).filter(|end| *end <= bytes.len()),
            Err(_null) => Some(body),
        },
        b'*' | b'~' | b'>' => elements(bytes, body, number()),
        b'%' => elements(bytes, body, 2 * number()),
        // An attribute stands before the value that it describes.
        b'|' => elements(bytes, body, 2 * number() + 1),
        other => panic!("not the start of a RESP value: {:?}", char::from(other)),
    }
}

fn elements(bytes: &[u8], mut at: usize, count: i64) -> Option<usize> {
    for _ in 0..count {
        at += frame_len(bytes.get(at..).filter(|rest| !rest.is_empty())?)?;
    }
    Some(at)
}

/// Whether a reply is a RESP3 push, which answers no command.
pub(crate) fn is_push(frame: &[u8]) -> bool {
    frame.first() == Some(&b'>')
}

/// The upper-case name of a command: the first bulk string of its array.
pub(crate) fn command_name(frame: &[u8]) -> String {
    let mut lines = frame.split(|byte| *byte == b'\n');
    let name = lines.nth(2).unwrap_or_default();
    String::from_utf8_lossy(name).trim_end().to_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use super::{command_name, frame_len};

    #[test]
    fn a_value_is_complete_only_with_its_last_byte() {
        let values: [&[u8]; 9] = [
            b"+OK\r\n",
            b"$-1\r\n",
            b"$3\r\na\r\n\r\n",
            b"*-1\r\n",
            b"*2\r\n$1\r\na\r\n:7\r\n",
            b"%1\r\n+k\r\n*1\r\n_\r\n",
            b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n",
            b"|1\r\n+ttl\r\n:3\r\n#t\r\n",
            b"=7\r\ntxt:abc\r\n",
        ];
        for value in values {
            let mut stream = value.to_vec();
            stream.extend_from_slice(b"+next\r\n");
            assert_eq!(frame_len(&stream), Some(value.len()), "{value:?}");
            for cut in 0..value.len() {
                assert_eq!(frame_len(&value[..cut]), None, "{:?}", &value[..cut]);
            }
        }
    }

    #[test]
    fn the_name_of_a_command_is_its_first_word() {
        assert_eq!(command_name(b"*2\r\n$3\r\nget\r\n$1\r\nk\r\n"), "GET");
    }
}

//! The compact encoding of values: `None`, `bool`, 64-bit `int`, `float`, text, bytes, `range`, arrays, and lists, tuples
//! and dicts of them. This is its bytes alone, one [`Token`] after the other; the native module has the objects.
//!
//! A byte says what follows ([`Token`] lists it), and its highest bit that what follows is *remembered*: values that
//! can occur again are numbered in the order in which they begin, and [`Token::Again`] names one. A dict may also name
//! the *keys* of an earlier one ([`Token::NewKeys`]), which are numbered likewise.

use crate::wire::DecodeError;

const NONE: u8 = 0;
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const INT_8: u8 = 3;
const INT_1: u8 = 4;
const FLOAT: u8 = 5;
const TEXT: u8 = 6;
const BYTES: u8 = 7;
const TUPLE: u8 = 8;
const DICT: u8 = 9;
const ARRAY: u8 = 10;
const TEXT_APART: u8 = 11;
const BYTES_APART: u8 = 12;
const NUMBERS: u8 = 13;
const RANGE: u8 = 14;
const INT_2: u8 = 15;
const INT_4: u8 = 16;
const LIST: u8 = 17;
const NEW_KEYS: u8 = 18;
const SAME_KEYS: u8 = 19;
const AGAIN: u8 = 20;

/// Added to the byte of a value that can occur again.
const REMEMBERED: u8 = 0x80;

/// Maximum nesting of lists, tuples and dicts.
pub const MAX_DEPTH: u8 = 64;
/// Maximum number of lists of keys that dicts can name.
pub const MAX_KEYS: usize = 1024;
/// Maximum number of keys in one.
pub const MAX_NAMED_KEYS: usize = 256;
/// Maximum length of a list of `None` as numbers, which take no bytes.
pub const MAX_NONES: usize = 64 * 1024;

/// What the items of a list of numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberKind {
    /// `None`.
    None,
    /// 0 or 1, in a byte.
    Bool,
    /// 64-bit floating-point numbers.
    Float,
    /// Integers of one byte.
    Int1,
    /// Integers of two bytes.
    Int2,
    /// Integers of four bytes.
    Int4,
    /// Integers of eight bytes.
    Int8,
}

impl NumberKind {
    /// All, by the byte that stands for each.
    const ALL: [Self; 7] = [
        Self::None,
        Self::Bool,
        Self::Float,
        Self::Int1,
        Self::Int2,
        Self::Int4,
        Self::Int8,
    ];

    /// Bytes of an item.
    pub fn item_bytes(self) -> usize {
        match self {
            Self::None => 0,
            Self::Bool | Self::Int1 => 1,
            Self::Int2 => 2,
            Self::Int4 => 4,
            Self::Float | Self::Int8 => 8,
        }
    }
}

/// An array, whose bytes are out of band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Array<'a> {
    /// Whether its first dimension varies fastest.
    pub fortran_order: bool,
    /// `NumPy`'s name of its type of items.
    pub dtype: &'a [u8],
    /// Its shape: eight bytes a dimension.
    pub shape: &'a [u8],
}

/// A value, or the beginning of one that holds others: these follow, in order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Token<'a> {
    /// `None`.
    None,
    /// A `bool`.
    Bool(bool),
    /// An `int`, in as few of 1, 2, 4 or 8 bytes as it needs.
    Int(i64),
    /// A `float`.
    Float(f64),
    /// UTF-8; it is for the reader of the object to check it.
    Text(&'a [u8]),
    /// A `bytes`.
    Bytes(&'a [u8]),
    /// Text in the next out-of-band buffer.
    TextApart,
    /// A `bytes` in the next out-of-band buffer.
    BytesApart,
    /// An array in the next out-of-band buffer.
    Array(Array<'a>),
    /// A `range`: its start, stop and step.
    Range([i64; 3]),
    /// A list whose items are numbers of one kind: this many, and their bytes.
    Numbers(NumberKind, usize, &'a [u8]),
    /// A tuple of this many items.
    Tuple(usize),
    /// A list of this many items.
    List(usize),
    /// A dict of this many entries: key and value of each.
    Dict(usize),
    /// A dict of this many entries: all keys, then all values. Other dicts may name its keys by a number.
    NewKeys(usize),
    /// A dict with the keys of this number: its values.
    SameKeys(usize),
    /// The remembered value of this number.
    Again(usize),
}

impl<'a> Token<'a> {
    /// Appends it.
    #[expect(
        clippy::inline_always,
        reason = "as a value in memory it takes as long as all else"
    )]
    #[inline(always)]
    pub fn write(self, is_remembered: bool, out: &mut Vec<u8>) {
        let mark = if is_remembered { REMEMBERED } else { 0 };
        match self {
            Self::None => out.push(NONE),
            Self::Bool(flag) => out.push(if flag { TRUE } else { FALSE }),
            Self::Int(int) => {
                if let Ok(int) = i8::try_from(int) {
                    out.extend_from_slice(&[INT_1, int.cast_unsigned()]);
                } else if let Ok(int) = i16::try_from(int) {
                    put(INT_2, &int.to_le_bytes(), out);
                } else if let Ok(int) = i32::try_from(int) {
                    put(INT_4, &int.to_le_bytes(), out);
                } else {
                    put(INT_8, &int.to_le_bytes(), out);
                }
            }
            Self::Float(float) => put(FLOAT, &float.to_le_bytes(), out),
            Self::Text(text) => put_sized(mark | TEXT, text, out),
            Self::Bytes(bytes) => put_sized(mark | BYTES, bytes, out),
            Self::TextApart => out.push(mark | TEXT_APART),
            Self::BytesApart => out.push(mark | BYTES_APART),
            Self::Array(array) => {
                out.extend_from_slice(&[mark | ARRAY, u8::from(array.fortran_order)]);
                put_len(array.dtype.len(), out);
                out.extend_from_slice(array.dtype);
                put_len(array.shape.len() / 8, out);
                out.extend_from_slice(array.shape);
            }
            Self::Range(parts) => {
                out.push(mark | RANGE);
                out.extend(parts.iter().flat_map(|part| part.to_le_bytes()));
            }
            Self::Numbers(kind, n, data) => {
                out.extend_from_slice(&[mark | NUMBERS, kind as u8]);
                put_len(n, out);
                out.extend_from_slice(data);
            }
            Self::Tuple(n) => put_count(mark | TUPLE, n, out),
            Self::List(n) => put_count(mark | LIST, n, out),
            Self::Dict(n) => put_count(mark | DICT, n, out),
            Self::NewKeys(n) => put_count(mark | NEW_KEYS, n, out),
            Self::SameKeys(number) => put_count(mark | SAME_KEYS, number, out),
            Self::Again(number) => put_count(AGAIN, number, out),
        }
    }

    /// Takes the next token, and whether its value is remembered.
    ///
    /// # Errors
    /// [`DecodeError`] if there is none.
    #[expect(
        clippy::inline_always,
        reason = "as a value in memory it takes as long as all else"
    )]
    #[inline(always)]
    pub fn read(bytes: &mut &'a [u8]) -> Result<(Self, bool), DecodeError> {
        let (&tag, rest) = bytes.split_first().ok_or(DecodeError::Truncated)?;
        *bytes = rest;
        let token = match tag & !REMEMBERED {
            NONE => Self::None,
            TRUE => Self::Bool(true),
            FALSE => Self::Bool(false),
            INT_1 => Self::Int(i8::from_le_bytes(take_array(bytes)?).into()),
            INT_2 => Self::Int(i16::from_le_bytes(take_array(bytes)?).into()),
            INT_4 => Self::Int(i32::from_le_bytes(take_array(bytes)?).into()),
            INT_8 => Self::Int(i64::from_le_bytes(take_array(bytes)?)),
            FLOAT => Self::Float(f64::from_le_bytes(take_array(bytes)?)),
            TEXT => Self::Text(take_sized(bytes)?),
            BYTES => Self::Bytes(take_sized(bytes)?),
            TEXT_APART => Self::TextApart,
            BYTES_APART => Self::BytesApart,
            ARRAY => Self::Array(take_description(bytes)?),
            RANGE => {
                let mut part = || take_array(bytes).map(i64::from_le_bytes);
                Self::Range([part()?, part()?, part()?])
            }
            NUMBERS => take_numbers(bytes)?,
            TUPLE => Self::Tuple(take_count(bytes)?),
            LIST => Self::List(take_count(bytes)?),
            DICT => Self::Dict(take_count(bytes)?),
            NEW_KEYS => Self::NewKeys(take_count(bytes)?),
            SAME_KEYS => Self::SameKeys(take_len(bytes)?),
            AGAIN => Self::Again(take_len(bytes)?),
            _ => return Err(DecodeError::Malformed),
        };
        let is_remembered = tag & REMEMBERED != 0;
        if is_remembered && !token.can_be_remembered() {
            return Err(DecodeError::Malformed);
        }
        Ok((token, is_remembered))
    }

    /// Whether its value is an object whose identity readers can see.
    #[inline]
    fn can_be_remembered(self) -> bool {
        !matches!(
            self,
            Self::None | Self::Bool(_) | Self::Int(_) | Self::Float(_) | Self::Again(_)
        )
    }
}

/// Whether an encoding has arrays, as far as it can be read: else all its out-of-band buffers are of text or bytes.
pub fn has_arrays(mut bytes: &[u8]) -> bool {
    while let Ok((token, _)) = Token::read(&mut bytes) {
        if matches!(token, Token::Array(_)) {
            return true;
        }
    }
    false
}

#[inline]
fn put(tag: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(tag);
    out.extend_from_slice(bytes);
}

#[inline]
fn put_sized(tag: u8, bytes: &[u8], out: &mut Vec<u8>) {
    put_count(tag, bytes.len(), out);
    out.extend_from_slice(bytes);
}

#[inline]
fn put_count(tag: u8, n: usize, out: &mut Vec<u8>) {
    if n < 0x80 {
        out.extend_from_slice(&[tag, n as u8]);
    } else {
        out.push(tag);
        put_len(n, out);
    }
}

/// Seven bits a byte, the lowest first; all but the last have their highest bit set.
fn put_len(mut n: usize, out: &mut Vec<u8>) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

#[inline]
fn take<'a>(bytes: &mut &'a [u8], n: usize) -> Result<&'a [u8], DecodeError> {
    bytes.split_off(..n).ok_or(DecodeError::Truncated)
}

#[inline]
fn take_array<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], DecodeError> {
    let (taken, rest) = bytes.split_first_chunk().ok_or(DecodeError::Truncated)?;
    *bytes = rest;
    Ok(*taken)
}

#[inline]
fn take_len(bytes: &mut &[u8]) -> Result<usize, DecodeError> {
    let [first] = take_array(bytes)?;
    if first < 0x80 {
        return Ok(first.into());
    }
    let mut n = u64::from(first & 0x7f);
    for shift in (7..49).step_by(7) {
        let [byte] = take_array(bytes)?;
        n |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return usize::try_from(n).map_err(|_| DecodeError::Malformed);
        }
    }
    Err(DecodeError::Malformed)
}

#[inline]
fn take_sized<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], DecodeError> {
    let n = take_len(bytes)?;
    take(bytes, n)
}

/// A number of values, each of which takes at least one byte.
#[inline]
fn take_count(bytes: &mut &[u8]) -> Result<usize, DecodeError> {
    let n = take_len(bytes)?;
    if n > bytes.len() {
        return Err(DecodeError::Truncated);
    }
    Ok(n)
}

fn take_description<'a>(bytes: &mut &'a [u8]) -> Result<Array<'a>, DecodeError> {
    let fortran_order = match take_array(bytes)? {
        [0] => false,
        [1] => true,
        _ => return Err(DecodeError::Malformed),
    };
    let dtype = take_sized(bytes)?;
    let n_dims = take_count(bytes)?;
    let shape = take(bytes, n_dims.checked_mul(8).ok_or(DecodeError::Truncated)?)?;
    Ok(Array {
        fortran_order,
        dtype,
        shape,
    })
}

fn take_numbers<'a>(bytes: &mut &'a [u8]) -> Result<Token<'a>, DecodeError> {
    let [kind] = take_array(bytes)?;
    let kind = NumberKind::ALL.get(usize::from(kind));
    let kind = *kind.ok_or(DecodeError::Malformed)?;
    let n = take_len(bytes)?;
    if kind == NumberKind::None && n > MAX_NONES {
        return Err(DecodeError::TooLong {
            claimed: n as u64,
            limit: MAX_NONES as u64,
        });
    }
    let n_bytes = n.checked_mul(kind.item_bytes());
    let data = take(bytes, n_bytes.ok_or(DecodeError::Truncated)?)?;
    Ok(Token::Numbers(kind, n, data))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARRAY: Array<'_> = Array {
        fortran_order: true,
        dtype: b"<f8",
        shape: &[3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0],
    };

    fn tokens(filling: &[u8]) -> Vec<Token<'_>> {
        let mut all = vec![
            Token::None,
            Token::Bool(true),
            Token::Bool(false),
            Token::Float(-0.5),
            Token::Text(b"text"),
            Token::Bytes(b""),
            Token::Bytes(filling),
            Token::TextApart,
            Token::BytesApart,
            Token::Array(ARRAY),
            Token::Range([i64::MIN, 0, -1]),
            Token::Numbers(NumberKind::None, MAX_NONES, b""),
            Token::Numbers(NumberKind::Bool, 2, &[0, 1]),
            Token::Numbers(NumberKind::Int2, 200, &filling[..400]),
            Token::Numbers(NumberKind::Float, 1, &[0; 8]),
        ];
        all.extend([0, -1, 127, -129, 1 << 15, -(1 << 31), i64::MAX, i64::MIN].map(Token::Int));
        for n in [0, 1, 127, 128, 300] {
            all.extend([
                Token::Tuple(n),
                Token::List(n),
                Token::Dict(n),
                Token::NewKeys(n),
                Token::SameKeys(n),
                Token::Again(n * 100_000),
            ]);
        }
        all
    }

    #[test]
    fn tokens_arrive_as_they_were_written() {
        let filling = vec![7; 1000];
        let mut bytes = Vec::new();
        let all = tokens(&filling);
        for token in &all {
            token.write(false, &mut bytes);
            if token.can_be_remembered() {
                token.write(true, &mut bytes);
            }
        }
        // Counts are checked against what follows them.
        bytes.extend_from_slice(&filling);
        let mut rest = &bytes[..];
        for token in &all {
            assert_eq!(Token::read(&mut rest), Ok((*token, false)));
            if token.can_be_remembered() {
                assert_eq!(Token::read(&mut rest), Ok((*token, true)));
            }
        }
        assert_eq!(rest, &filling[..]);
    }

    #[test]
    fn an_array_is_found_wherever_it_is() {
        let encoded = |tokens: &[Token<'_>]| {
            let mut bytes = Vec::new();
            for token in tokens {
                token.write(false, &mut bytes);
            }
            bytes
        };
        let texts = [Token::Tuple(2), Token::TextApart, Token::BytesApart];
        assert!(!has_arrays(&encoded(&texts)));
        let nested = [
            Token::Tuple(2),
            Token::BytesApart,
            Token::List(1),
            Token::Array(ARRAY),
        ];
        assert!(has_arrays(&encoded(&nested)));
        // What cannot be read is refused by those who need it.
        assert!(!has_arrays(&[0xff]));
    }

    #[test]
    fn a_cut_token_is_refused() {
        let filling = vec![7; 1000];
        for token in tokens(&filling) {
            let mut bytes = Vec::new();
            token.write(false, &mut bytes);
            for end in 0..bytes.len() {
                assert_eq!(
                    Token::read(&mut &bytes[..end]),
                    Err(DecodeError::Truncated),
                    "{token:?} of {end} bytes"
                );
            }
        }
    }

    #[test]
    fn counts_are_bounded_by_the_bytes_that_follow() {
        for token in [
            Token::Tuple(5),
            Token::List(5),
            Token::Dict(5),
            Token::NewKeys(5),
        ] {
            let mut bytes = Vec::new();
            token.write(false, &mut bytes);
            bytes.extend_from_slice(&[0; 4]);
            assert_eq!(Token::read(&mut &bytes[..]), Err(DecodeError::Truncated));
        }
        let mut nones = Vec::new();
        Token::Numbers(NumberKind::None, MAX_NONES + 1, b"").write(false, &mut nones);
        assert!(matches!(
            Token::read(&mut &nones[..]),
            Err(DecodeError::TooLong { .. })
        ));
    }

    #[test]
    fn numbers_and_none_are_not_remembered() {
        for tag in [NONE, TRUE, FALSE, INT_1, INT_2, INT_4, INT_8, FLOAT, AGAIN] {
            let bytes = [tag | REMEMBERED, 0, 0, 0, 0, 0, 0, 0, 0];
            assert_eq!(Token::read(&mut &bytes[..]), Err(DecodeError::Malformed));
        }
    }

    #[test]
    fn lengths_without_end_are_refused() {
        let mut bytes = vec![TEXT];
        bytes.extend_from_slice(&[0xff; 20]);
        assert_eq!(Token::read(&mut &bytes[..]), Err(DecodeError::Malformed));
        assert_eq!(Token::read(&mut &[21][..]), Err(DecodeError::Malformed));
    }
}

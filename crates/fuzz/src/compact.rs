//! Values in the compact encoding, token by token, and written again.

use broadleaf_proto::compact::Token;

/// Tries one input.
pub fn run(data: &[u8]) {
    let mut rest = data;
    let mut again = Vec::new();
    let mut tokens = Vec::new();
    while let Ok((token, is_remembered)) = Token::read(&mut rest) {
        token.write(is_remembered, &mut again);
        tokens.push((token, is_remembered));
    }
    // What follows bounds the counts.
    again.resize(again.len() + data.len(), 0);
    let mut written = &again[..];
    for (token, is_remembered) in tokens {
        let (read, was_remembered) = Token::read(&mut written).expect("a token that was written");
        assert!(was_remembered == is_remembered);
        // Not a number is not equal to itself.
        assert_eq!(format!("{read:?}"), format!("{token:?}"));
    }
}

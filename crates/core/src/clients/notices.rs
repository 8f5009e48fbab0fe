//! What clients tell each other about the cluster: texts of whoever starts its engines, which the controller only keeps.

use std::collections::{BTreeMap, VecDeque};

use broadleaf_proto::control::ControlReply;
use broadleaf_proto::limits::MAX_HOST_NAME_BYTES;

/// Number of texts that are kept, the latest ones.
const MAX_NOTICES: usize = 4_096;
/// A longer text is cut.
const MAX_TEXT_BYTES: usize = 2_048;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Notices {
    texts: BTreeMap<String, String>,
    /// What they are about, oldest first.
    order: VecDeque<String>,
}

impl Notices {
    /// Keeps a text, or takes it back if it is empty.
    pub fn keep(&mut self, about: String, mut text: String) -> ControlReply {
        if about.len() > MAX_HOST_NAME_BYTES {
            return ControlReply::Failed("its subject has too long a name".into());
        }
        if self.texts.remove(&about).is_some() {
            self.order.retain(|known| *known != about);
        }
        if text.is_empty() {
            return ControlReply::Done;
        }
        if self.order.len() == MAX_NOTICES
            && let Some(oldest) = self.order.pop_front()
        {
            self.texts.remove(&oldest);
        }
        let end = (0..=MAX_TEXT_BYTES.min(text.len())).rev();
        let end = end.into_iter().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
        self.order.push_back(about.clone());
        self.texts.insert(about, text);
        ControlReply::Done
    }

    /// The text about this; empty if there is none.
    pub fn about(&self, about: &str) -> String {
        self.texts.get(about).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_text_is_kept_until_it_is_taken_back() {
        let mut notices = Notices::default();
        assert_eq!(notices.about("n1"), "");
        assert_eq!(
            notices.keep("n1".into(), "preempted".into()),
            ControlReply::Done
        );
        notices.keep("n1".into(), "cancelled".into());
        assert_eq!(notices.about("n1"), "cancelled");
        notices.keep("n1".into(), String::new());
        assert_eq!(notices.about("n1"), "");
        assert!(notices.order.is_empty());
    }

    #[test]
    fn they_are_bounded_in_number_and_length() {
        let mut notices = Notices::default();
        for number in 0..MAX_NOTICES + 2 {
            notices.keep(number.to_string(), "\u{e9}".repeat(MAX_TEXT_BYTES));
        }
        assert_eq!(notices.texts.len(), MAX_NOTICES);
        assert_eq!(notices.order.len(), MAX_NOTICES);
        assert_eq!(notices.about("1"), "");
        assert_eq!(notices.about("2").len(), MAX_TEXT_BYTES);
        let refused = notices.keep("n".repeat(MAX_HOST_NAME_BYTES + 1), "text".into());
        assert!(matches!(refused, ControlReply::Failed(_)));
    }
}

//! Deaths of engines that a client has heard of.

use std::collections::VecDeque;

/// Number of deaths that are remembered.
const MAX_DEATHS: usize = 256;

/// The last deaths, and how many there were in all.
#[derive(Default)]
pub struct Deaths {
    count: u64,
    last: VecDeque<String>,
}

impl Deaths {
    /// Adds a death by its certificate as JSON.
    pub fn push(&mut self, certificate: String) {
        self.count += 1;
        self.last.push_back(certificate);
        if self.last.len() > MAX_DEATHS {
            self.last.pop_front();
        }
    }

    /// The number of deaths, and the certificates of those after the first `n`, as far as they are remembered.
    pub fn after(&self, n: u64) -> (u64, Vec<String>) {
        let n_new = self.count.saturating_sub(n).min(self.last.len() as u64) as usize;
        let new = self.last.range(self.last.len() - n_new..);
        (self.count, new.cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_deaths_are_remembered() {
        let mut deaths = Deaths::default();
        assert_eq!(deaths.after(0), (0, vec![]));
        for number in 0..300 {
            deaths.push(number.to_string());
        }
        assert_eq!(deaths.after(298), (300, vec!["298".into(), "299".into()]));
        assert_eq!(deaths.after(300), (300, vec![]));
        let (_, all) = deaths.after(0);
        assert_eq!((all.len(), all[0].as_str()), (MAX_DEATHS, "44"));
    }
}

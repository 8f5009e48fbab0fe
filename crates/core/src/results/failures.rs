//! What tasks raised, by kind: how often, where last, and a description of one. For dashboards; nothing is decided by it.

use broadleaf_proto::error_head::ErrorHead;
use broadleaf_proto::ids::EngineId;
use bytes::Bytes;
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;

/// Kinds that are remembered. Beyond that, the one that was seen longest ago is forgotten.
pub(crate) const MAX_KINDS: usize = 128;

/// Function, by the tag of its hash, and kind of error.
type Key = (u32, u64);

/// One kind of error of one function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The name of the function.
    pub function: Bytes,
    /// The start of the function's hash.
    pub tag: u32,
    /// See [`ErrorHead::kind`]; 0 for records without a head.
    pub kind: u64,
    /// Tasks that ended with it.
    pub tasks: u64,
    /// Items of maps that ended with it; tasks that are no chunks count as one.
    pub items: u64,
    /// Where it was raised last.
    pub engine: EngineId,
    /// Wall clock when it was raised first, ns since 1970.
    pub first_ns: u64,
    /// Wall clock when it was raised last, ns since 1970.
    pub last_ns: u64,
    /// See [`ErrorHead::text`]; empty if no engine has described it.
    pub text: Bytes,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failures {
    kinds: IndexMap<Key, Failure, FxBuildHasher>,
}

impl Failures {
    /// A task of a function raised at `at_ns` of the wall clock, and left this record.
    pub fn observe(
        &mut self,
        tag: u32,
        function: &impl Fn() -> Bytes,
        engine: EngineId,
        at_ns: u64,
        record: &Bytes,
    ) {
        let mut has_head = false;
        for head in ErrorHead::all(record) {
            has_head = true;
            self.count(tag, function, engine, at_ns, &head);
        }
        if !has_head {
            let unknown = ErrorHead {
                kind: 0,
                n_items: 1,
                text: Bytes::new(),
            };
            self.count(tag, function, engine, at_ns, &unknown);
        }
    }

    fn count(
        &mut self,
        tag: u32,
        function: &impl Fn() -> Bytes,
        engine: EngineId,
        at_ns: u64,
        head: &ErrorHead,
    ) {
        let kind = head.kind;
        let mut described = Bytes::new();
        if !self.kinds.contains_key(&(tag, kind)) {
            self.make_room();
            // An engine describes most kinds once, also if several functions raise it.
            if head.text.is_empty() {
                described = self.text_of(kind);
            }
        }
        let failure = self.kinds.entry((tag, kind)).or_insert_with(|| Failure {
            function: function(),
            tag,
            kind,
            tasks: 0,
            items: 0,
            engine,
            first_ns: at_ns,
            last_ns: at_ns,
            text: described,
        });
        failure.tasks += 1;
        failure.items += u64::from(head.n_items);
        failure.engine = engine;
        failure.last_ns = failure.last_ns.max(at_ns);
        if failure.text.is_empty() {
            // The text shares memory with all that was received with it.
            failure.text = Bytes::copy_from_slice(&head.text);
        }
    }

    fn text_of(&self, kind: u64) -> Bytes {
        let same = (self.kinds.values()).find(|f| f.kind == kind && !f.text.is_empty());
        same.map_or_else(Bytes::new, |failure| failure.text.clone())
    }

    fn make_room(&mut self) {
        if self.kinds.len() < MAX_KINDS {
            return;
        }
        let oldest = self.kinds.values().enumerate();
        if let Some((index, _)) = oldest.min_by_key(|(_, failure)| failure.last_ns) {
            self.kinds.swap_remove_index(index);
        }
    }

    pub fn len(&self) -> usize {
        self.kinds.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Failure> {
        self.kinds.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_that_several_functions_raise_is_described_for_all() {
        let mut failures = Failures::default();
        for (tag, text) in [(1, "told"), (2, "")] {
            let mut record = Vec::new();
            let text = Bytes::from_static(text.as_bytes());
            let head = ErrorHead {
                kind: 5,
                n_items: 1,
                text,
            };
            head.encode(&mut record);
            failures.observe(tag, &Bytes::new, EngineId(0), 1, &record.into());
        }
        let texts: Vec<_> = failures.iter().map(|f| (f.tag, &f.text[..])).collect();
        assert_eq!(texts, [(1, &b"told"[..]), (2, b"told")]);
    }
}

//! Tasks whose dependencies have ended.

use broadleaf_proto::control::RefusalReason;
use broadleaf_proto::ids::TaskKey;

use super::Controller;
use crate::Output;
use crate::tasks::TaskState;
use crate::tasks::dependencies::{Verdict, Wait};

impl Controller {
    /// A task's dependencies are met: restricts its engines to those it follows.
    pub(super) fn follow(&mut self, key: TaskKey, wait: Wait, out: &mut Vec<Output>) {
        let engines = wait.into_engines();
        let task = self.tasks.at(key);
        if !engines.is_empty() {
            let elsewhere = task.pinned().is_some_and(|e| !engines.contains(&e.0));
            task.follow(engines);
            if elsewhere {
                self.refuse(key, &RefusalReason::ImpossibleDependency, out);
                return;
            }
        }
        self.make_ready(key, false, out);
    }

    /// Notifies the dependents of tasks that ended, and theirs in turn.
    pub(super) fn settle(&mut self, out: &mut Vec<Output>) {
        while let Some(ended) = self.dependencies.next_end() {
            for (key, kind) in self.dependencies.forget_dependents(ended.slot) {
                let Some(wait) = self.dependencies.get_mut(key) else {
                    continue; // It stopped waiting for another reason.
                };
                wait.count(kind, ended.status, ended.engine);
                let verdict = wait.verdict();
                if verdict == Verdict::Pending {
                    continue;
                }
                self.clear_timer(key);
                if let Some(wait) = self.dependencies.forget(key) {
                    self.tasks.at(key).enter(TaskState::Detached);
                    if verdict == Verdict::Met {
                        self.follow(key, wait, out);
                    } else {
                        self.refuse(key, &RefusalReason::ImpossibleDependency, out);
                    }
                }
            }
        }
    }
}

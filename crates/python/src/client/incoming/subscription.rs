//! Results of tasks that somebody else submitted, or of tasks run again, as requests of this client.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use broadleaf_client::{Parts, Submitted};
use broadleaf_net::LinkError;
use broadleaf_proto::control::{self, ControlRequest};
use broadleaf_proto::{FrameKind, TaskSeq};

use crate::client::requests::request::Request;
use crate::client::shared::Shared;
use crate::clock::wall_ns;
use crate::payload::lock;

impl Shared {
    /// Sends a request whose answer is a result for each of `n` tasks; `make` builds it from their first number.
    pub fn start_adoption(
        &self,
        n: usize,
        make: impl FnOnce(TaskSeq) -> ControlRequest,
    ) -> Result<Arc<Request>, LinkError> {
        self.wire.with(|net| {
            self.append_submissions(net);
            let mut batch = lock(&self.batch);
            // Later, nobody would end what is added.
            if self.is_closed() {
                return Err(LinkError::Closed);
            }
            let first = self.lasting.next_seq.fetch_add(n as u64, Ordering::Relaxed);
            let request = Arc::new(Request::new(first, wall_ns(), false, Parts::new(n)));
            let parts = Submitted {
                seq: first,
                len: n,
                coalescing: false,
                weight_bytes: 0,
                claims: None,
                request: Arc::clone(&request),
            };
            batch.adopt(parts);
            drop(batch);
            self.register_submissions();
            // Nobody waits for the reply: the results say everything.
            let number = lock(&self.replies).number();
            let body = control::encode(&(number, make(TaskSeq(first))));
            net.send(FrameKind::Request, &body, &[])?;
            self.flush_into(net)?;
            Ok(request)
        })
    }
}

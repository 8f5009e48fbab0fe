//! What a machine was told, as text that it can be run through again.
//!
//! A recording begins with a machine that knows nothing, so it begins when its node starts. It has no contents:
//! payload, functions' bodies and texts are replaced by their lengths, and of the outputs only their number and a digest
//! are kept. The driver writes it and `crates/sim` replays it.
//!
//! ```text
//! broadleaf recording 1
//! {"version":"0.1.0","start":{"controller":{"n_engines":4, ...}}}
//! 1203377 → {"input":{"client_up":{"client":1,"name":"------"}}} → 0 → cbf29ce484222325
//! 1203377 → "schedule" → 0 → cbf29ce484222325
//! end → limit
//! ```
//!
//! The arrows are tabs. A line is the time in nanoseconds, the call, the number of its outputs, their digest, and what the
//! machine asked the driver during the call, if it asked anything. All after the call is missing if the machine did not
//! return from it. The line `end` is missing if nobody ended the recording before the node ended.

mod call;
mod recorded;

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

pub use crate::recording::call::{Call, RelayCall, ReturningCall};
pub use crate::recording::recorded::{Recorded, Recorder};
use crate::relay::Arguments;
use crate::{Config, Nanos};

/// The version of the format.
pub const FORMAT: u32 = 1;
const TITLE: &str = "broadleaf recording ";

/// How a recording begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Broadleaf's version: another one may decide differently.
    pub version: String,
    /// The node whose machines were recorded.
    pub start: Start,
}

/// A node that starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// The controller's.
    Controller(Config),
    /// A relay's.
    Relay,
}

/// Why a recording ended before its node did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It had reached its maximum size.
    Limit,
    /// Somebody asked for it.
    Stopped,
}

impl End {
    const ALL: [Self; 2] = [Self::Limit, Self::Stopped];

    /// Its name in a recording.
    pub fn name(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Stopped => "stopped",
        }
    }
}

/// What a driver said when a machine asked it during a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// Whether the controller waits for the end of a task.
    IsWanted(bool),
    /// Whether the objects of a payload are here.
    Arguments(Arguments),
}

/// What became of a call: enough to notice that something else did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Number of outputs.
    pub outputs: usize,
    /// A digest of them, without the contents that a recording lacks.
    pub digest: u64,
    /// What the driver said meanwhile, in this order.
    pub said: Vec<Said>,
}

impl Answer {
    /// These were returned, and the driver was asked nothing.
    pub fn of<O: Serialize>(outputs: &[O]) -> Self {
        Self::with(outputs, Vec::new())
    }

    /// These were returned, and the driver said this.
    pub fn with<O: Serialize>(outputs: &[O], said: Vec<Said>) -> Self {
        let mut digest = Fnv::default();
        for output in outputs {
            write_json(output, &mut digest);
        }
        Self {
            outputs: outputs.len(),
            digest: digest.0,
            said,
        }
    }
}

/// Fowler, Noll and Vo's hash 1a: the same on every machine and in every version.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Write for Fnv {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The JSON form of an output, without contents.
pub fn shown<O: Serialize>(output: &O) -> String {
    let mut text = Vec::new();
    write_json(output, &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

fn write_json<T: Serialize>(value: &T, out: impl Write) {
    serde_json::to_writer(out, value)
        .expect("invariant: plain data is serialised into memory infallibly");
}

/// Appends the first lines.
pub fn begin(head: &Head, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("{TITLE}{FORMAT}\n").as_bytes());
    write_json(head, &mut *out);
    out.push(b'\n');
}

/// Appends a call that is about to be made; [`answer`] completes its line.
pub fn call(now: Nanos, call: &Call, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("{now}\t").as_bytes());
    write_json(call, out);
}

/// Appends what became of the call.
pub fn answer(answer: &Answer, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("\t{}\t{:016x}", answer.outputs, answer.digest).as_bytes());
    if !answer.said.is_empty() {
        out.push(b'\t');
        write_json(&answer.said, &mut *out);
    }
    out.push(b'\n');
}

/// Appends the last line.
pub fn end(end: End, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("end\t{}\n", end.name()).as_bytes());
}

/// One line of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A call of a machine.
    Call {
        /// When.
        now: Nanos,
        /// What it was told.
        call: Box<Call>,
        /// What became of it; `None` if the machine did not return.
        answer: Option<Answer>,
    },
    /// Nothing was recorded after this.
    End(End),
}

/// A text is no recording, or not one that can be read here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct Unreadable {
    /// The number of the line, from 1 on.
    pub line: usize,
    /// What is wrong with it.
    pub reason: String,
}

/// A line with its number.
pub type Numbered = Result<(usize, Line), Unreadable>;

/// Reads a recording: its head, and its lines with their numbers.
///
/// # Errors
/// [`Unreadable`] if the first lines are not those of a recording of this format.
pub fn read(text: &str) -> Result<(Head, impl Iterator<Item = Numbered>), Unreadable> {
    let mut lines = (1..).zip(text.lines());
    let title = lines.next().and_then(|(_, line)| line.strip_prefix(TITLE));
    let unreadable = |line, reason| Unreadable { line, reason };
    match title.map(str::parse::<u32>) {
        Some(Ok(FORMAT)) => {}
        Some(Ok(other)) => {
            let reason = format!("a recording of format {other}; this program reads {FORMAT}");
            return Err(unreadable(1, reason));
        }
        _ => return Err(unreadable(1, format!("not \"{TITLE}{FORMAT}\""))),
    }
    let head = lines.next().map_or("", |(_, line)| line);
    let head = serde_json::from_str(head).map_err(|error| unreadable(2, error.to_string()))?;
    Ok((
        head,
        lines.map(move |(number, line)| {
            let parsed = parse(line).map_err(|reason| unreadable(number, reason))?;
            Ok((number, parsed))
        }),
    ))
}

fn parse(line: &str) -> Result<Line, String> {
    let mut fields = line.split('\t');
    let mut next = || fields.next().unwrap_or("");
    let (now, call) = (next(), next());
    if now == "end" {
        let end = End::ALL.into_iter().find(|end| end.name() == call);
        return end
            .map(Line::End)
            .ok_or_else(|| format!("no such end: {call:?}"));
    }
    let now = now.parse().map_err(|_| format!("not a time: {now:?}"))?;
    let call = serde_json::from_str(call).map_err(|error| error.to_string())?;
    let answer = match (next(), next(), next()) {
        ("", "", "") => None,
        (outputs, digest, said) => Some(Answer {
            outputs: (outputs.parse()).map_err(|_| format!("not a number: {outputs:?}"))?,
            digest: u64::from_str_radix(digest, 16)
                .map_err(|_| format!("not a digest: {digest:?}"))?,
            said: match said {
                "" => Vec::new(),
                said => serde_json::from_str(said).map_err(|error| error.to_string())?,
            },
        }),
    };
    Ok(Line::Call { now, call, answer })
}

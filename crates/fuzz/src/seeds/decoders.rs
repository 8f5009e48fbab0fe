//! Single messages, each for its decoder alone.

use broadleaf_proto::compact::{Array, NumberKind, Token};
use broadleaf_proto::control::{self, ForkServerOrder, Hello, Role};
use broadleaf_proto::error_head::ErrorHead;
use broadleaf_proto::host::EngineOrder;
use broadleaf_proto::mover::{Flow, Landing, MoverCommand, MoverRank};
use broadleaf_proto::relay::{
    AssignMany, Fetch, PayloadCommand, RelayCommand, RelayedDone, Source,
};
use broadleaf_proto::{
    AssignRecord, Chunk, CoalescedRecord, EngineId, FrameHeader, FrameKind, FunctionId, HostId,
    ObjectId, PROTOCOL_VERSION, SegmentId, TaskKey, UploadChunk,
};
use bytes::Bytes;

use super::Seeds;
use super::messages::{
    certificate, compound, done, function, options, output, payload, refused, relay_events,
    requests, results, submit, welcome,
};

pub fn records(seeds: &mut Seeds) {
    let mut one = |which: u8, name: &str, record: &dyn Fn(&mut Vec<u8>)| {
        let mut input = vec![which];
        record(&mut input);
        seeds.add("records", name, &input);
    };
    let key = TaskKey::new(3, 4);
    let assign = AssignRecord {
        key,
        offer: 5,
        function: FunctionId(6),
        depth: 1,
        payload: payload(),
    };
    let many = AssignMany {
        offers: vec![(EngineId(1), key, 5), (EngineId(2), key, 6)],
        function: FunctionId(6),
        depth: 1,
        payload: payload(),
    };
    let engine = EngineId(1);
    let record = done(key, payload());
    let relayed = RelayedDone { engine, record };
    one(0, "submit", &|out| submit(9).encode(out));
    one(1, "assign", &|out| assign.encode(out));
    one(2, "done", &|out| done(key, payload()).encode(out));
    one(3, "result", &|out| {
        for result in results() {
            result.encode(out);
        }
    });
    one(4, "output", &|out| output(engine, key).encode(out));
    one(5, "function", &|out| function().encode(out));
    one(6, "assign-many", &|out| many.encode(out));
    one(7, "relayed-done", &|out| relayed.encode(out));
    one(8, "coalesced", &|out| {
        CoalescedRecord::pack(results()).encode(out);
    });
    one(9, "refused", &|out| refused().encode(out));
    one(11, "chunk", &|out| {
        Chunk::encode_head(ObjectId(7), 1, 2, 4096, out);
        out.extend_from_slice(b"bytes");
    });
    one(12, "upload", &|out| {
        out.extend_from_slice(&UploadChunk::head(SegmentId(7), 4096));
        out.extend_from_slice(b"bytes");
    });
    one(13, "error-heads", &|out| {
        for (kind, n_items, text) in [(7, 3, &b"{}"[..]), (8, 1, b"")] {
            let text = Bytes::from_static(text);
            let head = ErrorHead {
                kind,
                n_items,
                text,
            };
            head.encode(out);
        }
        out.extend_from_slice(b"\x80\x05");
    });
}

pub fn control_messages(seeds: &mut Seeds) {
    let mut one = |name: &str, body: Vec<u8>| seeds.add("control", name, &body);
    let hello = Hello {
        protocol: PROTOCOL_VERSION,
        broadleaf: "0.1.0".into(),
        python: "3.11".into(),
        cluster_id: "a-cluster".into(),
        role: Role::Relay {
            name: "node7".into(),
            n_engines: 4,
            n_cores: 8,
            listen: Some("node7:4000".into()),
            ends_in_ns: Some(3_600_000_000_000),
            former: None,
        },
    };
    one("hello", control::encode(&hello));
    one("welcome", control::encode(&welcome()));
    one("options", control::encode(&options()));
    one("certificate", control::encode(&certificate()));
    for (number, request) in requests().into_iter().enumerate() {
        one(
            &format!("request-{number}"),
            control::encode(&(7_u64, request)),
        );
    }
    for (number, event) in relay_events(EngineId(2), TaskKey(3)).iter().enumerate() {
        one(&format!("relay-event-{number}"), control::encode(event));
    }
    let fetch = Fetch {
        object: ObjectId(7),
        len_bytes: 1 << 20,
        chunk_bytes: 1 << 16,
        sources: vec![Source {
            host: HostId(2),
            address: Some("node8:4000".into()),
            mover: Some(MoverRank { world: 5, rank: 1 }),
        }],
        epoch: 1,
    };
    one("fetch", control::encode(&RelayCommand::Fetch(fetch)));
    let seat = EngineOrder::ForkServer(ForkServerOrder::Seat {
        engine: EngineId(3),
        world: "world".into(),
        rank: 1,
    });
    one("order", control::encode(&RelayCommand::Order(seat)));
    let pull = PayloadCommand::Pull {
        object: ObjectId(7),
        offset_bytes: 1 << 16,
        pull: 2,
        round_trip_ns: 20_000_000,
        landing: Some(Landing {
            mover: MoverRank { world: 5, rank: 2 },
            tag: 3,
            piece_bytes: 1 << 18,
        }),
    };
    one("pull", control::encode(&pull));
    let join = PayloadCommand::Join {
        object: ObjectId(7),
        pull: 2,
        round_trip_ns: 20_000_000,
    };
    one("join", control::encode(&join));
    one(
        "dial",
        control::encode(&PayloadCommand::Dial { connections: 4 }),
    );
    let flow = Flow {
        flow: 1,
        peer: 2,
        tag: 3,
        piece_bytes: 1 << 18,
        segment_offset_bytes: 4096,
        len_bytes: 8 << 20,
        from_bytes: 1 << 18,
    };
    one("flow", control::encode(&MoverCommand::Receive(flow)));
}

pub fn frames(seeds: &mut Seeds) {
    let mut body = Vec::new();
    submit(1).encode(&mut body);
    let mut input = vec![40]; // Bytes that arrive at a time.
    for kind in [FrameKind::Submit, FrameKind::Hello] {
        let header = FrameHeader {
            body_bytes: body.len() as u32,
            kind,
            fd_count: 0,
        };
        input.extend_from_slice(&header.encode());
        input.extend_from_slice(&body);
    }
    seeds.add("frames", "two", &input);
    seeds.add("frames", "header", &input[1..]);
}

/// Payloads and the starts of TLS connections.
/// Values as the native module writes them: rows with the same keys, and one of each other kind.
pub fn values(seeds: &mut Seeds) {
    let encoded = |tokens: &[(Token<'_>, bool)]| {
        let mut bytes = Vec::new();
        for (token, is_remembered) in tokens {
            token.write(*is_remembered, &mut bytes);
        }
        bytes
    };
    let rows = encoded(&[
        (Token::List(3), false),
        (Token::NewKeys(2), false),
        (Token::Text(b"id"), true),
        (Token::Text(b"name"), true),
        (Token::Int(1), false),
        (Token::Text(b"first"), false),
        (Token::SameKeys(0), true),
        (Token::Int(70_000), false),
        (Token::Again(1), false),
        (Token::Again(2), false),
    ]);
    seeds.add("compact", "rows", &rows);
    let array = Array {
        fortran_order: false,
        dtype: b"<f8",
        shape: &2_u64.to_le_bytes(),
    };
    let all = encoded(&[
        (Token::Tuple(11), false),
        (Token::None, false),
        (Token::Bool(true), false),
        (Token::Int(-300), false),
        (Token::Int(1 << 40), false),
        (Token::Float(0.5), false),
        (Token::Bytes(b"bytes"), false),
        (Token::TextApart, false),
        (Token::BytesApart, true),
        (Token::Array(array), false),
        (Token::Range([0, 10, 3]), false),
        (Token::Dict(1), false),
        (Token::Int(1), false),
        (Token::Numbers(NumberKind::Int2, 2, &[1, 2, 3, 4]), false),
    ]);
    seeds.add("compact", "all", &all);
}

pub fn bytes(seeds: &mut Seeds) {
    seeds.add("layout", "compound", &compound());
    // The start of a client's hello in TLS 1.3.
    seeds.add(
        "tls",
        "client-hello",
        b"\x16\x03\x01\x00\x2d\x01\x00\x00\x29\x03\x03",
    );
    seeds.add("tls", "block", &[0xb1; 64]);
}

"""The rules of the layout hold, and each check notices when its rule is broken."""

import sys
from pathlib import Path

import circles
import pytest
import rules

ROOT = Path(__file__).resolve().parents[2]


def place(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return root


def test_crates_use_only_what_the_layout_allows():
    assert rules.crate_dependencies(rules.cargo_metadata(ROOT)) == []


@pytest.mark.parametrize(
    ("crate", "used", "kind", "allowed"),
    [
        ("broadleaf-core", "broadleaf-proto", None, True),
        ("broadleaf-core", "broadleaf-node", None, False),
        ("broadleaf-core", "tokio", None, False),
        ("broadleaf-core", "proptest", "dev", True),
        ("broadleaf-node", "tokio", None, True),
        ("broadleaf-node", "broadleaf-python", None, False),
        ("broadleaf-net", "broadleaf-core", None, False),
        ("broadleaf-core", "broadleaf-sim", "dev", True),
        ("broadleaf-client", "broadleaf-core", None, False),
        ("broadleaf-client", "rustix", None, False),
        ("broadleaf-extra", "serde", None, False),
    ],
)
def test_a_wrong_dependency_is_noticed(crate, used, kind, allowed):
    metadata = {"packages": [{"name": crate, "dependencies": [{"name": used, "kind": kind}]}]}
    assert (rules.crate_dependencies(metadata) == []) is allowed


def test_the_crates_that_only_decide_are_pure():
    assert rules.purity(ROOT) == []


@pytest.mark.parametrize(
    "line",
    ["use tokio::sync::mpsc;", "let t = Instant::now();", "use std::collections::HashMap;", "std::thread::spawn(f);",
     "use std::net::TcpStream;", "let x = y.await;"],
)  # fmt: skip
def test_an_effect_in_core_is_noticed(tmp_path, line):
    place(tmp_path, "crates/core/src/lib.rs", f"//! Core.\n{line}\n")
    assert rules.purity(tmp_path) == [f"crates/core/src/lib.rs:2: {line}"]


def test_comments_and_tests_of_core_may_name_effects(tmp_path):
    place(tmp_path, "crates/core/src/lib.rs", "// no HashMap here\n#[cfg(test)]\nmod tests { use std::fs; }\n")
    assert rules.purity(tmp_path) == []


@pytest.mark.parametrize("crate", rules.PURE)
def test_no_files_of_a_crate_that_only_decides_use_each_other(crate):
    assert circles.circles(ROOT, crate) == []


@pytest.mark.parametrize(
    ("one", "other", "is_circle"),
    [
        ("use crate::other::B;\npub struct A(B);", "pub struct B;", False),
        ("use crate::other::B;\npub struct A(B);", "use super::one;\npub struct B(Box<one::A>);", True),
        ("pub struct A;", "use crate::A;\npub struct B(A);", False),
        ("pub struct A(crate::other::B);", "use crate::{A, other};\npub struct B(Box<A>);", True),
        ("pub struct A;\nimpl A {\nfn f(&self) {}\n}", "use crate::A;\nimpl A {\nfn g(&self) { self.f() }\n}", False),
        ("pub struct A;\nimpl A {\nfn f(&self) { self.g() }\n}", "use crate::A;\nimpl A {\nfn g(&self) {}\n}", True),
        ("pub struct A;", "// use crate::other;\n#[cfg(test)]\nmod tests { use crate::one::A; }", False),
    ],
)
def test_files_that_use_each_other_are_noticed(tmp_path, one, other, is_circle):
    place(tmp_path, "crates/core/src/lib.rs", "mod one;\nmod other;\npub use one::A;\n")
    place(tmp_path, "crates/core/src/one.rs", one)
    place(tmp_path, "crates/core/src/other.rs", other)
    assert circles.circles(tmp_path, "core") == ["core: one.rs, other.rs use each other"] * is_circle


def test_no_field_of_the_crates_that_only_decide_is_shared_by_a_whole_crate():
    assert rules.shared_fields(ROOT) == []


def test_a_field_that_a_whole_crate_shares_is_noticed(tmp_path):
    lines = ["pub struct A {", "pub a: u8,", "pub(crate) b: u8,", "d: u8,", "}", "pub(crate) fn f() {}"]
    place(tmp_path, "crates/core/src/lib.rs", "\n".join(lines))
    assert rules.shared_fields(tmp_path) == ["crates/core/src/lib.rs:3: pub(crate) b: u8,"]


def test_unsafe_code_is_where_it_belongs():
    assert rules.unsafe_code(ROOT) == []


def test_misplaced_or_unexplained_unsafe_code_is_noticed(tmp_path):
    place(tmp_path, "crates/node/src/lib.rs", "unsafe { f() }\n")
    place(tmp_path, "crates/shm/src/lib.rs", "unsafe { f() }\n")
    place(tmp_path, "crates/shm/src/fine.rs", "// SAFETY: f has no conditions\nunsafe { f() }\n")
    assert rules.unsafe_code(tmp_path) == [
        "crates/node/src/lib.rs:1: unsafe outside crates/shm and crates/python/src/buffer.rs",
        "crates/shm/src/lib.rs:1: unsafe without a SAFETY comment",
    ]


def test_file_names_say_what_is_inside():
    assert rules.file_names(ROOT) == []


@pytest.mark.parametrize("name", ["utils.py", "helpers.rs", "_common.py"])
def test_a_vague_file_name_is_noticed(tmp_path, name):
    place(tmp_path, f"python/{name}", "")
    assert len(rules.file_names(tmp_path)) == 1


def test_no_merge_is_left_undecided():
    assert rules.merge_markers(ROOT) == []


def test_an_undecided_merge_is_noticed(tmp_path):
    ours, theirs = "<" * 7, ">" * 7
    place(tmp_path, "docs/page.md", f"| a |\n{ours} HEAD\n| b |\n=======\n| c |\n{theirs} other\n")
    place(tmp_path, "docs/title.md", "Title\n=======\n")
    assert rules.merge_markers(tmp_path) == ["docs/page.md: has both sides of a merge"]


def test_nothing_below_the_root_imports_its_names():
    assert rules.root_imports(ROOT) == []


@pytest.mark.parametrize(
    ("part", "line"),
    [
        ("cli", "from broadleaf import _native"),
        ("notebook", "from broadleaf._native import Link"),
        ("client", "def f():\n    import broadleaf"),
        ("engine", "from broadleaf import get_client"),
    ],
)
def test_an_import_of_the_root_is_noticed(tmp_path, part, line):
    place(tmp_path, f"python/broadleaf/{part}/main.py", line + "\n")
    assert len(rules.root_imports(tmp_path)) == 1


@pytest.mark.parametrize(
    ("part", "line"),
    [
        ("client", "from broadleaf import _native"),
        ("bench", "import broadleaf as ipp"),
        ("cli", "from broadleaf import engine"),
        ("cli", "from broadleaf.engine.table import rows"),
    ],
)
def test_a_right_import_passes(tmp_path, part, line):
    place(tmp_path, "python/broadleaf/engine/__init__.py", "")
    place(tmp_path, f"python/broadleaf/{part}/main.py", line + "\n")
    assert rules.root_imports(tmp_path) == []


def test_importing_broadleaf_loads_nothing_heavy():
    pytest.importorskip("broadleaf._native", reason="the native module is not built")
    assert rules.loaded_by_import(sys.executable, rules.NOT_LOADED) == []


def test_every_test_has_a_time_limit():
    assert rules.time_limits(ROOT) == []
    assert rules.unlimited_tests(ROOT) == []


def test_a_missing_time_limit_is_noticed(tmp_path):
    for name in ("pyproject.toml", "lab/pyproject.toml"):
        place(tmp_path, name, "[tool.pytest.ini_options]\n")
    assert len(rules.time_limits(tmp_path)) == 2
    for name in ("tests/test_slow.py", "lab/tests/test_slow.py"):
        place(tmp_path, name, "@pytest.mark.timeout(0)\ndef test(): ...\n")
    assert len(rules.unlimited_tests(tmp_path)) == 2

# Builds the native module of the tree this is run in and puts it beside the Python sources.
set -eu
cargo build --release --locked --quiet --package broadleaf-python --features pyo3/extension-module
cp "$CARGO_TARGET_DIR/release/lib_native.so" python/broadleaf/_native.abi3.so

# make help lists everything.
CARGO ?= cargo
BIN := target/release/orlop
export CARGO_TERM_COLOR ?= always

.PHONY: help build up dev test unit lint docs bench tools fuzz package clean

help: ## list these
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

build: ## build the binary (target/release/orlop)
	$(CARGO) build --release --locked -p orlop

up: build ## start a cluster here, until Ctrl-C
	$(BIN) up

dev: ## the same with a quick, unoptimised build: for those who change code (ARGS="--nodes 0")
	$(CARGO) build --locked -p orlop
	target/debug/orlop up $(ARGS)

# Black-box tests run the binary that is shipped; what tests are compiled of themselves need not be optimised. Phases are
# timed: `make test` prints what each took.
test: ## everything CI runs: lints, docs, unit and black-box tests with the release binary and real clients
	@./tools/timed tools $(MAKE) --no-print-directory tools
	@./tools/timed lint $(MAKE) --no-print-directory lint
	@./tools/timed build $(MAKE) --no-print-directory build
	@./tools/timed build-tests $(CARGO) nextest run --locked --workspace --no-run
	@./tools/timed run-tests $(CARGO) nextest run --locked --workspace --no-fail-fast
	@./tools/timed

unit: ## the tests of one crate: make unit CRATE=scheduler
	$(CARGO) nextest run --locked -p orlop-$(CRATE)

lint: ## formatting, lints and rustdoc; warnings are errors
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(MAKE) --no-print-directory docs

# What rustdoc needs of each crate is what `cargo clippy` has checked already, if both go through the same driver with the
# same arguments (its own separator between them); otherwise cargo checks every crate twice.
CLIPPY := RUSTC_WORKSPACE_WRAPPER="$$(rustc --print sysroot)/bin/clippy-driver" CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__

docs: ## rustdoc of all crates, without warnings (target/doc)
	$(CLIPPY) RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" $(CARGO) doc --locked --workspace --no-deps --document-private-items

bench: build ## measure: the store, decoding, and a running server (see docs/benchmarks.md)
	$(CARGO) bench --workspace
	$(BIN) bench
	$(BIN) bench services

MINUTES ?= 5
fuzz: ## damaged patches, bodies, selectors, certificates, times for MINUTES (FUZZ_SEED, FUZZ_ONLY: see the test)
	FUZZ_MINUTES=$(if $(FUZZ_ONLY),,$(MINUTES)) $(CARGO) test --release --locked -p orlop-apiserver --test fuzz -- --nocapture

package: build ## a .deb in target/package (see docs/install.md)
	./tools/package

tools: ## what the tests need beside Rust (installs with apt-get, as root)
	./tools/install-test-tools

clean: ## remove what was built
	$(CARGO) clean

# make help lists everything.
CARGO ?= cargo
PROFILE := release
BIN := target/$(PROFILE)/orlop
export CARGO_TERM_COLOR ?= always

.PHONY: help build up test lint bench tools fuzz clean

help: ## list these
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

build: ## build the binary (target/release/orlop)
	$(CARGO) build --release --locked -p orlop

up: build ## start a cluster here, until Ctrl-C
	$(BIN) up

# One build profile for everything that is tested, so that what is tested is what is shipped.
test: tools lint ## everything CI runs: lints, unit and black-box tests with the release binary and real clients
	$(CARGO) build --release --locked --workspace --bins --tests
	$(CARGO) nextest run --release --locked --workspace --no-fail-fast

lint: ## formatting and lints, warnings are errors
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --locked --workspace --all-targets -- -D warnings

bench: build ## measure: the store, decoding, and a running server (see docs/benchmarks.md)
	$(CARGO) bench --workspace
	$(BIN) bench
	$(BIN) bench services

MINUTES ?= 5
fuzz: ## damaged patches, bodies, selectors, certificates, times for MINUTES (FUZZ_SEED, FUZZ_ONLY: see the test)
	FUZZ_MINUTES=$(if $(FUZZ_ONLY),,$(MINUTES)) $(CARGO) test --release --locked -p orlop-apiserver --test fuzz -- --nocapture

tools: ## what the tests need beside Rust (installs with apt-get, as root)
	./tools/install-test-tools

clean: ## remove what was built
	$(CARGO) clean

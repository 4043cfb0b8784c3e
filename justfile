# Short names for what is done often. `just` alone lists them.

_list:
    @just --list --unsorted

# What CI runs
check:
    ./.ci/run

# All tests, on SQLite and PostgreSQL
test *arguments:
    ./scripts/test {{ arguments }}

# Put the sources in form
format:
    cargo fmt --all

# Licences, sources and bans of the dependencies
deny:
    ./scripts/deny

# Made-up input for the rules, so many seconds for each target
fuzz seconds="600":
    ./scripts/fuzz {{ seconds }}

# Made-up requests to every operation
schemathesis *arguments:
    ./scripts/schemathesis {{ arguments }}

# Start the service
serve:
    cargo run --release -- serve

# Write the OpenAPI document anew after a change of the API
openapi:
    cargo run --quiet -- openapi > openapi/openapi.json.new
    mv openapi/openapi.json.new openapi/openapi.json

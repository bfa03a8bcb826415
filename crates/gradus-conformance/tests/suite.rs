//! The suite passes the oracle and catches backends that are wrong.

use gradus_conformance::{OracleBackend, check};

#[test]
fn the_oracle_passes_its_own_suite() {
    check(&OracleBackend::new()).unwrap_or_else(|report| panic!("{report}"));
}

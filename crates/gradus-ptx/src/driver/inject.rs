//! Failures on request: the n-th call of a function returns a code and does nothing.

use std::collections::HashMap;

use super::abi::Code;

/// The calls of each function, and which of them are to fail.
#[derive(Default)]
pub(super) struct Calls {
    /// Since the process began.
    total: HashMap<&'static str, u64>,
    rules: Vec<Rule>,
}

/// One part of a plan, `cuMemAllocAsync:7=2` or `cuMemAllocAsync:7+=2`.
#[derive(Debug, PartialEq)]
struct Rule {
    function: String,
    /// Counted from 1, since the plan was made.
    call: u64,
    /// Whether the later calls fail as well.
    and_later: bool,
    code: Code,
    met: u64,
}

impl Rule {
    fn parse(text: &str) -> Option<Rule> {
        let (call, code) = text.split_once('=')?;
        let (function, call) = call.split_once(':')?;
        let (call, and_later) = call.strip_suffix('+').map_or((call, false), |call| (call, true));
        let (call, code) = (call.trim().parse().ok()?, code.trim().parse().ok()?);
        // Callers may know only the codes of the interface. Those of cuBLASLt and NCCL have other meanings.
        if !["cublasLt", "nccl"].iter().any(|library| function.trim().starts_with(library)) {
            Code(code).name()?;
        }
        Some(Rule { function: function.trim().into(), call, and_later, code: Code(code), met: 0 })
    }
}

impl Calls {
    /// Replaces the plan. Its parts are separated by commas. An error names the part that is none.
    pub(super) fn plan(&mut self, text: &str) -> Result<(), String> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        self.rules = parts.map(|part| Rule::parse(part).ok_or_else(|| part.to_string())).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Counts a call. An error is the code that it has to return.
    pub(super) fn count(&mut self, function: &'static str) -> Result<(), Code> {
        *self.total.entry(function).or_default() += 1;
        let mut outcome = Ok(());
        for rule in self.rules.iter_mut().filter(|rule| rule.function == function) {
            rule.met += 1;
            if rule.met == rule.call || (rule.and_later && rule.met > rule.call) {
                outcome = Err(rule.code);
            }
        }
        outcome
    }

    /// All calls, by name.
    pub(super) fn totals(&self) -> Vec<(&'static str, u64)> {
        let mut all: Vec<_> = self.total.iter().map(|(name, count)| (*name, *count)).collect();
        all.sort();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_call_fails_and_no_other() {
        let mut calls = Calls::default();
        calls.plan("cuMemAllocAsync:2=2, cuLaunchKernel:1+=719, cublasLtMatmul:1=13").unwrap();
        assert_eq!(calls.count("cuMemAllocAsync"), Ok(()));
        assert_eq!(calls.count("cuMemAllocAsync"), Err(Code(2)));
        assert_eq!(calls.count("cuMemAllocAsync"), Ok(()));
        assert_eq!(calls.count("cuLaunchKernel"), Err(Code(719)));
        assert_eq!(calls.count("cuLaunchKernel"), Err(Code(719)));
        assert_eq!(calls.count("cublasLtMatmul"), Err(Code(13)));
        assert_eq!(calls.totals(), [("cuLaunchKernel", 2), ("cuMemAllocAsync", 3), ("cublasLtMatmul", 1)]);
        calls.plan("").unwrap();
        assert_eq!(calls.count("cuLaunchKernel"), Ok(()));
    }

    #[test]
    fn a_plan_that_is_none_is_refused() {
        for text in ["cuMemAllocAsync", "cuMemAllocAsync:x=2", "cuMemAllocAsync:1=", "cuInit:1=12345", "a:1=2,b"] {
            assert!(Calls::default().plan(text).is_err(), "{text}");
        }
    }
}

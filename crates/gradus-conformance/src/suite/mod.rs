//! The machinery of the suite. A [`Case`] is one call of the contract with its inputs. [`Suite`] runs it in many
//! layouts on the backend under test and compares the results with the oracle's.
//!
//! Outputs are filled with a canary before the call, so that doing nothing is a failure, and lie between guard bytes
//! that must not change. The memory around inputs is filled with NaN, so that a stray read is a failure too.

mod array;
mod compare;

use std::panic::{AssertUnwindSafe, catch_unwind};

use gradus_backend::{Backend, Buffer, DType, Error, ErrorKind, Result, Scalar, View, ViewMut};

use crate::oracle::OracleBackend;
use crate::report::{Failure, Report};

pub(crate) use array::{Array, Placed, Placement, Rng, shape};
pub(crate) use compare::Bound;

/// The canary: an unlikely value in every dtype, and a large one in every float dtype.
const CANARY: u8 = 0x5A;
/// The bytes around inputs: NaN in every float dtype.
const POISON: u8 = 0xFF;

/// Cases with at least this many elements run in fewer layouts: their purpose is to reach the code for large operands.
const LARGE: usize = 8192;

/// The call that a case makes, with its inputs and outputs in order.
pub(crate) type Call<'c> = dyn Fn(&dyn Backend, &[View<'_>], &mut [ViewMut<'_>]) -> Result<()> + 'c;

/// An output of a case.
#[derive(Debug, Clone)]
pub(crate) enum Output {
    /// Overwritten.
    Fresh(DType, Vec<usize>),
    /// Read and written.
    Updated(Array),
}

/// One call of the contract. It must be valid for every float dtype, because the suite also makes it in f64.
pub(crate) struct Case<'c> {
    name: String,
    inputs: Vec<Array>,
    outputs: Vec<Output>,
    call: &'c Call<'c>,
    magnitude: Option<&'c Call<'c>>,
    bound: Bound,
    optional: bool,
}

impl<'c> Case<'c> {
    pub(crate) fn new(name: impl Into<String>, inputs: Vec<Array>, outputs: Vec<Output>, call: &'c Call<'c>) -> Self {
        let name = name.into();
        Case { name, inputs, outputs, call, magnitude: None, bound: Bound::Exact, optional: false }
    }

    /// Sets how close the results must be; exact by default.
    pub(crate) fn bound(mut self, bound: Bound) -> Self {
        self.bound = bound;
        self
    }

    /// Sets the call that computes the sum of magnitudes from the operands' magnitudes, for [`Bound::Linear`] and
    /// [`Bound::Naive`]. By default, this is the case's own call for the former, and the latter has none.
    pub(crate) fn magnitude(mut self, call: &'c Call<'c>) -> Self {
        self.magnitude = Some(call);
        self
    }

    /// Sets whether the backend may reject the dtype instead.
    pub(crate) fn optional(mut self, optional: bool) -> Self {
        self.optional = optional;
        self
    }

    /// Every dtype among the operands and outputs.
    fn dtypes(&self) -> impl Iterator<Item = DType> {
        let of_output = |o: &Output| match o {
            Output::Fresh(d, _) => *d,
            Output::Updated(a) => a.dtype,
        };
        self.inputs.iter().map(|a| a.dtype).chain(self.outputs.iter().map(of_output))
    }

    /// The number of elements of all operands together.
    fn numel(&self) -> usize {
        let of_output = |o: &Output| match o {
            Output::Fresh(_, dims) => dims.iter().product(),
            Output::Updated(a) => a.data.len(),
        };
        self.inputs.iter().map(|a| a.data.len()).chain(self.outputs.iter().map(of_output)).sum()
    }
}

/// The oracle's results for a case: the values of each output, and their allowed errors.
struct Expected {
    values: Vec<Vec<Scalar>>,
    tolerances: Vec<Vec<f64>>,
}

/// How the oracle receives the operands of a case.
#[derive(Debug, Clone, Copy)]
enum Form {
    /// Unchanged.
    Plain,
    /// With floats widened to at least this dtype.
    Wide(DType),
    /// As absolute values, in f64.
    Magnitudes,
}

impl Form {
    fn dtype(self, dtype: DType) -> DType {
        match self {
            Form::Plain => dtype,
            Form::Wide(to) => array::widened(dtype, to),
            Form::Magnitudes => array::widened(dtype, DType::F64),
        }
    }

    fn of(self, a: &Array) -> Array {
        let mut a = Array { dtype: self.dtype(a.dtype), ..a.clone() };
        if let Form::Magnitudes = self {
            a.data.iter_mut().for_each(|v| {
                if let Scalar::Float(v) = v {
                    *v = v.abs();
                }
            });
        }
        a
    }
}

/// The error that an invalid call must return.
#[derive(Debug, Clone)]
pub(crate) enum Refusal {
    /// Any error.
    Any,
    /// An error of this kind.
    Kind(ErrorKind),
}

/// The FNV-1a hash of a case's name.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

/// A run of the suite on one backend.
pub(crate) struct Suite<'b> {
    backend: &'b dyn Backend,
    filter: &'b str,
    /// Whether each case runs in one layout only.
    brief: bool,
    /// Which part of the cases runs, and how many parts there are.
    part: (u64, u64),
    /// A prefix for the names of cases: the round of a deep run.
    prefix: String,
    exact: OracleBackend,
    naive: OracleBackend,
    report: Report,
}

impl<'b> Suite<'b> {
    /// Runs only the cases that match `filter`.
    pub(crate) fn new(backend: &'b dyn Backend, filter: &'b str) -> Self {
        let report = Report::new(backend.name());
        Suite {
            backend,
            filter,
            brief: false,
            part: (0, 1),
            prefix: String::new(),
            exact: OracleBackend::new(),
            naive: OracleBackend::naive(),
            report,
        }
    }

    /// Runs each case in one layout only.
    pub(crate) fn brief(self) -> Self {
        Suite { brief: true, ..self }
    }

    /// Runs one of `parts` parts of the cases. Each case is in one of them.
    pub(crate) fn part(self, part: u64, parts: u64) -> Self {
        Suite { part: (part, parts), ..self }
    }

    /// The layouts to run a case in: normally all; for a large case, the plain one and two others; in a brief run, just
    /// one. A layout that the filter names is always included. If only some layouts run, a hash of the case's name
    /// selects them, so that similar cases run in different layouts.
    fn variants(&self, case: &Case<'_>) -> impl Iterator<Item = usize> + use<> {
        let count = Placement::INPUTS.len();
        let turn = (hash(&format!("{}{}", self.prefix, case.name)) >> 32) as usize;
        let [one, other] = [turn, turn + count / 2].map(|i| 1 + i % (count - 1));
        let (brief, large) = (self.brief, case.numel() >= LARGE);
        let named = self.filter.rsplit_once('/').filter(|(before, _)| before.ends_with(&case.name));
        let named: Option<usize> = named.and_then(|(_, variant)| variant.parse().ok());
        (0..count).filter(move |&i| match (brief, large) {
            _ if named == Some(i) => true,
            (true, _) => i == turn % count,
            (false, true) => [0, one, other].contains(&i),
            (false, false) => true,
        })
    }

    /// Sets the prefix of the names of the cases that follow.
    pub(crate) fn set_prefix(&mut self, prefix: String) {
        self.prefix = prefix;
    }

    /// The random numbers of a case. In a deep run, each round draws others.
    pub(crate) fn rng(&self, name: &str) -> Rng {
        Rng::new(&format!("{}{name}", self.prefix))
    }

    /// The calls so far.
    pub(crate) fn cases(&self) -> usize {
        self.report.cases
    }

    /// The calls of an operation so far.
    pub(crate) fn cases_of(&self, operation: &str) -> usize {
        self.report.operations.get(operation).copied().unwrap_or_default()
    }

    pub(crate) fn filter(&self) -> &'b str {
        self.filter
    }

    pub(crate) fn finish(self) -> Report {
        self.report
    }

    /// Whether a name matches the filter. Either may contain the other: the name of a case selects its variants, and
    /// the name of a variant selects its case.
    fn wanted(&self, name: &str) -> bool {
        name.contains(self.filter) || self.filter.starts_with(name)
    }

    fn is_in_part(&self, name: &str) -> bool {
        let (part, parts) = self.part;
        hash(name) % parts == part
    }

    fn fail(&mut self, name: &str, detail: String) {
        self.report.failures.push(Failure { name: name.to_owned(), detail });
    }

    /// Whether the backend supports these dtypes; a case that needs another is counted as skipped.
    pub(crate) fn supports(&mut self, mut dtypes: impl Iterator<Item = DType>) -> bool {
        let supported = dtypes.all(|d| self.backend.supports(d));
        self.report.skipped += usize::from(!supported);
        supported
    }

    /// Runs a case in its layouts.
    pub(crate) fn case(&mut self, case: &Case<'_>) {
        let full = format!("{}{}", self.prefix, case.name);
        if !self.wanted(&full) || !self.is_in_part(&full) {
            return;
        }
        if !self.supports(case.dtypes()) {
            return;
        }
        let mut plain = None;
        for variant in self.variants(case) {
            let name = format!("{full}/{variant}");
            if !self.wanted(&name) {
                continue;
            }
            // The length of the case's name shifts the layouts of the outputs, so that these vary even among cases with
            // one operand.
            let pick = |i: usize, from: &[Placement]| if variant == 0 { from[0] } else { from[i % from.len()] };
            let ins: Vec<_> = (0..case.inputs.len()).map(|i| pick(variant + i, &Placement::INPUTS)).collect();
            let shift = case.name.len() + variant;
            let outs: Vec<_> = (0..case.outputs.len()).map(|i| pick(shift + i, &Placement::OUTPUTS)).collect();
            let fitted: Vec<_> = case.inputs.iter().zip(&ins).map(|(a, &p)| a.fitted(p)).collect();
            let stretched;
            let expected = if fitted.iter().zip(&case.inputs).all(|(a, b)| a.data == b.data) {
                match &mut plain {
                    Some(expected) => Ok(&*expected),
                    none => self.expected(case, &fitted).map(|e| &*none.insert(e)),
                }
            } else {
                stretched = self.expected(case, &fitted);
                stretched.as_ref().map_err(Clone::clone)
            };
            self.report.count(&case.name);
            let detail = match expected {
                Ok(expected) => attempt(self.backend, case, &fitted, &ins, &outs, expected),
                Err(e) => Some(format!("the oracle refuses this: {e}")),
            };
            if let Some(detail) = detail {
                self.fail(&name, format!("inputs {ins:?}, outputs {outs:?}: {detail}"));
            }
        }
    }

    /// Checks a call that must fail, immediately or at the next synchronisation.
    pub(crate) fn refuse(&mut self, name: &str, refusal: &Refusal, call: impl FnOnce(&dyn Backend) -> Result<()>) {
        self.check(name, |b| match (call(b).and_then(|()| b.synchronize()), refusal) {
            (Ok(()), _) => Err("the call succeeded; it must be refused".to_owned()),
            (Err(e), Refusal::Kind(want)) if e.kind() != want => Err(format!("expected {want:?}, got {e:?}")),
            (Err(_), _) => Ok(()),
        });
    }

    /// Runs any other check; its error says what is wrong.
    pub(crate) fn check(&mut self, name: &str, check: impl FnOnce(&dyn Backend) -> Result<(), String>) {
        if !self.wanted(name) || !self.is_in_part(name) {
            return;
        }
        self.report.count(name);
        let backend = self.backend;
        let result = catch_unwind(AssertUnwindSafe(|| check(backend))).unwrap_or_else(|p| Err(panicked(&*p)));
        if let Err(detail) = result {
            self.fail(name, detail);
        }
    }

    /// The correct results for a case.
    fn expected(&self, case: &Case<'_>, inputs: &[Array]) -> Result<Expected> {
        let on = |oracle: &OracleBackend, call: &Call<'_>, form: Form| -> Result<Vec<Vec<Scalar>>> {
            let inputs: Vec<_> =
                inputs.iter().map(|a| Placed::new(&form.of(a), Placement::Contiguous, POISON)).collect();
            let output = |o: &Output| match o {
                Output::Fresh(d, dims) => Placed::blank(form.dtype(*d), shape(dims), Placement::Contiguous, CANARY),
                Output::Updated(a) => Placed::new(&form.of(a), Placement::Contiguous, CANARY),
            };
            let outputs: Vec<_> = case.outputs.iter().map(output).collect();
            let bytes = execute(oracle, &inputs, &outputs, call)?;
            Ok(outputs.iter().zip(bytes).map(|(o, b)| o.values(&b)).collect())
        };
        let in_dtype = matches!(case.bound, Bound::Exact | Bound::Bits | Bound::Ulps(_));
        let widest = if in_dtype { Form::Plain } else { Form::Wide(DType::F64) };
        let values = on(&self.exact, case.call, widest)?;
        let naive = match case.bound {
            Bound::Naive | Bound::NaiveStored => Some(on(&self.naive, case.call, Form::Wide(DType::F32))?),
            _ => None,
        };
        let sizes = match case.bound {
            Bound::Linear(_) => Some(case.magnitude.unwrap_or(case.call)),
            Bound::Naive => case.magnitude,
            _ => None,
        };
        let magnitudes = sizes.map(|call| on(&self.exact, call, Form::Magnitudes)).transpose()?;
        let dtypes: Vec<_> = case.dtypes().skip(case.inputs.len()).collect();
        let tolerances = (0..values.len()).map(|i| {
            let [naive, magnitudes] = [&naive, &magnitudes].map(|all| all.as_ref().map(|all| &*all[i]));
            compare::tolerances(case.bound, dtypes[i], &values[i], naive, magnitudes)
        });
        Ok(Expected { tolerances: tolerances.collect(), values })
    }
}

/// Runs a case in one choice of layouts, and describes what is wrong with the result.
fn attempt(
    backend: &dyn Backend,
    case: &Case<'_>,
    inputs: &[Array],
    ins: &[Placement],
    outs: &[Placement],
    expected: &Expected,
) -> Option<String> {
    let inputs: Vec<_> = inputs.iter().zip(ins).map(|(a, &p)| Placed::new(a, p, POISON)).collect();
    let output = |(o, &p): (&Output, &Placement)| match o {
        Output::Fresh(d, dims) => Placed::blank(*d, shape(dims), p, CANARY),
        Output::Updated(a) => Placed::new(a, p, CANARY),
    };
    let outputs: Vec<_> = case.outputs.iter().zip(outs).map(output).collect();
    let run = || execute(backend, &inputs, &outputs, case.call);
    let bytes = match catch_unwind(AssertUnwindSafe(run)) {
        Err(panic) => return Some(panicked(&*panic)),
        Ok(Err(e)) if case.optional && *e.kind() == ErrorKind::UnsupportedDType => return None,
        Ok(Err(e)) => return Some(format!("refused: {e}")),
        Ok(Ok(bytes)) => bytes,
    };
    for (o, (placed, bytes)) in outputs.iter().zip(&bytes).enumerate() {
        if let Some(i) = placed.stray_write(bytes) {
            return Some(format!("byte {i} of output {o} lies outside its elements and was written"));
        }
        if placed.dtype == DType::Bool
            && let Some(p) = placed.layout.positions().find(|&p| bytes[p] > 1)
        {
            return Some(format!("byte {p} of bool output {o} is {:#x}", bytes[p]));
        }
        for (i, got) in placed.values(bytes).into_iter().enumerate() {
            let (want, tolerance) = (expected.values[o][i], expected.tolerances[o][i]);
            if let Some(wrong) = compare::mismatch(case.bound, placed.dtype, got, want, tolerance) {
                let index = array::index_of(placed.layout.shape(), i);
                let (dtype, shape) = (placed.dtype, placed.layout.shape());
                return Some(format!("element {index:?} of output {o} ({shape} {dtype}) is {wrong}"));
            }
        }
    }
    None
}

/// Uploads the inputs, makes the call, and downloads the outputs.
pub(crate) fn execute(
    backend: &dyn Backend,
    inputs: &[Placed],
    outputs: &[Placed],
    call: &Call<'_>,
) -> Result<Vec<Vec<u8>>> {
    let ins = inputs.iter().map(|p| uploaded(backend, &p.bytes)).collect::<Result<Vec<_>>>()?;
    let mut outs = outputs.iter().map(|p| uploaded(backend, &p.bytes)).collect::<Result<Vec<_>>>()?;
    let views: Vec<_> =
        ins.iter().zip(inputs).map(|(buffer, p)| View { buffer, dtype: p.dtype, layout: &p.layout }).collect();
    let mut targets: Vec<_> =
        outs.iter_mut().zip(outputs).map(|(buffer, p)| ViewMut { buffer, dtype: p.dtype, layout: &p.layout }).collect();
    call(backend, &views, &mut targets)?;
    backend.synchronize()?;
    let mut results = Vec::new();
    for (buffer, placed) in outs.iter().zip(outputs) {
        let mut bytes = vec![0; placed.bytes.len()];
        backend.download(buffer, 0, &mut bytes)?;
        results.push(bytes);
    }
    Ok(results)
}

/// A buffer that holds these bytes.
pub(crate) fn uploaded(backend: &dyn Backend, bytes: &[u8]) -> Result<Buffer> {
    let mut buffer = backend.alloc(bytes.len())?;
    backend.upload(&mut buffer, 0, bytes)?;
    Ok(buffer)
}

/// The message of a panic.
fn panicked(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
    format!("panicked: {}", text.unwrap_or("without a message"))
}

/// The message of an error.
pub(crate) fn said(e: Error) -> String {
    e.to_string()
}

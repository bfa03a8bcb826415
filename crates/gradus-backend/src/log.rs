//! Prints one line for each backend call if `GRADUS_LOG=op` is set.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::{Backend, Buffer, Call, CallOperand, DType, Layout, Result, Scalar, Shape, View, ViewMut, Watched};

/// The measured peak throughput of a backend.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ceilings {
    /// Operations per second, measured on an f32 product of two 768 x 768 matrices.
    pub operations: f64,
    /// Bytes per second, reads and writes together, measured on a copy of 32 MiB.
    pub bytes: f64,
}

/// The number of rows and of columns of the matrices. The copy has `COPIED` elements.
const SIDE: usize = 768;
const COPIED: usize = 1 << 23;

impl Ceilings {
    /// Measures both values, each as the best of seven runs. This takes tens of milliseconds.
    pub fn measure(backend: &dyn Backend) -> Result<Self> {
        let (matrix, long) = (Shape::new(&[SIDE, SIDE])?, Shape::new(&[COPIED])?);
        let (matrix, long) = (Layout::contiguous(matrix), Layout::contiguous(long));
        let filled = |layout: &Layout| -> Result<Buffer> {
            let mut buffer = backend.alloc(layout.numel() * 4)?;
            backend.fill(&mut ViewMut { buffer: &mut buffer, dtype: DType::F32, layout }, Scalar::Float(0.5))?;
            Ok(buffer)
        };
        let best = |run: &mut dyn FnMut() -> Result<()>| -> Result<f64> {
            let mut best = f64::INFINITY;
            for _ in 0..7 {
                backend.synchronize()?;
                let began = Instant::now();
                run()?;
                backend.synchronize()?;
                best = best.min(began.elapsed().as_secs_f64());
            }
            Ok(best)
        };
        let (a, b, mut c) = (filled(&matrix)?, filled(&matrix)?, filled(&matrix)?);
        let view = |buffer| View { buffer, dtype: DType::F32, layout: &matrix };
        let product = best(&mut || {
            let c = &mut ViewMut { buffer: &mut c, dtype: DType::F32, layout: &matrix };
            backend.gemm(Scalar::Float(1.0), view(&a), view(&b), Scalar::Float(0.0), c)
        })?;
        let (x, mut y) = (filled(&long)?, filled(&long)?);
        let copy = best(&mut || {
            let y = &mut ViewMut { buffer: &mut y, dtype: DType::F32, layout: &long };
            backend.copy_strided(View { buffer: &x, dtype: DType::F32, layout: &long }, y)
        })?;
        Ok(Ceilings { operations: 2.0 * (SIDE * SIDE * SIDE) as f64 / product, bytes: 8.0 * COPIED as f64 / copy })
    }
}

/// Describes a call in one line: name, operands, time, speed, and the percentage of the backend's peak throughput that
/// it reached.
///
/// ```text
/// conv             f32[64,1,8,8] f32[16,1,3,3] f32[16] -> f32[64,16,8,8]   52.1 us   22.6 GFLOP/s (19 %)   5.4 GB/s (15 %)
/// ```
pub fn line(call: &Call<'_>, ceilings: Option<&Ceilings>) -> String {
    let mut text = format!("{:<16}", call.name);
    let show = |text: &mut String, operands: &[CallOperand]| {
        for o in operands {
            let sizes: Vec<String> = o.shape.dims().iter().map(usize::to_string).collect();
            let _ = write!(text, " {}[{}]", o.dtype, sizes.join(","));
        }
    };
    show(&mut text, call.inputs);
    text.push_str(" ->");
    show(&mut text, call.outputs);
    let seconds = call.took.as_secs_f64();
    let _ = match seconds {
        s if s < 1e-3 => write!(text, "   {:.1} us", s * 1e6),
        s if s < 1.0 => write!(text, "   {:.2} ms", s * 1e3),
        s => write!(text, "   {s:.2} s"),
    };
    if !call.succeeded {
        text.push_str("   failed");
        return text;
    }
    for (count, best, unit) in [
        (call.operations, ceilings.map(|c| c.operations), "GFLOP/s"),
        (call.bytes(), ceilings.map(|c| c.bytes), "GB/s"),
    ] {
        if count > 0 && seconds > 0.0 {
            let speed = count as f64 / seconds;
            let _ = write!(text, "   {:.1} {unit}", speed / 1e9);
            if let Some(best) = best {
                let _ = write!(text, " ({:.0} %)", 100.0 * speed / best);
            }
        }
    }
    text
}

/// Whether the environment variable `GRADUS_LOG` lists `topic`.
pub fn wanted(topic: &str) -> bool {
    std::env::var("GRADUS_LOG").is_ok_and(|v| v.split(',').any(|word| word.trim() == topic))
}

/// Prints a line to standard error. Standard error may be closed; that is not an error.
pub fn print(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Returns the backend unchanged unless the environment variable `GRADUS_LOG` lists `op`. In that case, returns a
/// backend that also prints a [`line()`] for each call to standard error. The ceilings are measured when the first call
/// is reported.
pub fn logged(backend: Arc<dyn Backend>) -> Arc<dyn Backend> {
    if !wanted("op") {
        return backend;
    }
    let (measured, ceilings) = (backend.clone(), OnceLock::new());
    Arc::new(Watched::new(backend, move |call| {
        let ceilings = ceilings.get_or_init(|| Ceilings::measure(&*measured).ok());
        print(&line(call, ceilings.as_ref()));
    }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_line_has_operands_time_speed_and_share() {
        let operand = |dims: &[usize]| CallOperand {
            dtype: DType::F32,
            shape: Shape::new(dims).unwrap_or(Shape::SCALAR),
            bytes: 4 * dims.iter().product::<usize>() as u64,
        };
        let mut call = Call {
            name: "gemm",
            inputs: &[operand(&[100, 50]), operand(&[50, 20])],
            outputs: &[operand(&[100, 20])],
            operations: 200_000,
            began: Instant::now(),
            took: Duration::from_micros(10),
            succeeded: true,
        };
        let ceilings = Ceilings { operations: 80e9, bytes: 32e9 };
        assert_eq!(
            line(&call, Some(&ceilings)),
            "gemm             f32[100,50] f32[50,20] -> f32[100,20]   10.0 us   20.0 GFLOP/s (25 %)   3.2 GB/s (10 %)"
        );
        (call.operations, call.inputs, call.outputs) = (0, &[], &[]);
        call.took = Duration::from_millis(2);
        assert_eq!(line(&call, None), "gemm             ->   2.00 ms");
        call.succeeded = false;
        assert!(line(&call, None).ends_with("2.00 ms   failed"));
    }
}

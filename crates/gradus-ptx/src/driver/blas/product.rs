//! What a product does to the memory of a device.

use half::{bf16, f16};

use super::{Layout, WORKSPACE};
use crate::Memory;
use crate::driver::abi::{Code, ILLEGAL_ADDRESS};

/// Bytes of an element.
const SIZE: u64 = 2;
/// The number that says bf16; the other one is f16.
const BF16: i32 = 14;

/// A factor: matrices and where they begin.
pub(super) struct Factor {
    pub(super) layout: Layout,
    pub(super) is_transposed: bool,
    pub(super) address: u64,
}

/// `to = alpha * a * b + beta * to`, for each matrix of a batch.
pub(in crate::driver) struct Product {
    pub(super) a: Factor,
    pub(super) b: Factor,
    pub(super) to: (Layout, u64),
    pub(super) alpha: f32,
    pub(super) beta: f32,
    pub(super) workspace: u64,
}

fn read(bits: u16, kind: i32) -> f32 {
    if kind == BF16 { bf16::from_bits(bits).to_f32() } else { f16::from_bits(bits).to_f32() }
}

fn rounded(value: f64, kind: i32) -> u16 {
    let value = value as f32;
    if kind == BF16 { bf16::from_f32(value).to_bits() } else { f16::from_f32(value).to_bits() }
}

/// Where a column of a matrix of the batch begins.
fn column(layout: &Layout, address: u64, matrix: u64, col: u64) -> u64 {
    address + SIZE * (matrix * layout.step as u64 + col * layout.ld as u64)
}

/// A matrix of the batch by columns, without gaps. Every element must have been written.
fn matrix(memory: &Memory, layout: &Layout, address: u64, at: u64) -> Result<Vec<f32>, String> {
    let mut values = Vec::with_capacity((layout.rows * layout.cols) as usize);
    let mut bytes = vec![0; (layout.rows * SIZE) as usize];
    for col in 0..layout.cols {
        let from = column(layout, address, at, col);
        memory.read(from, &mut bytes).map_err(|error| error.to_string())?;
        if memory.is_written(from, bytes.len() as u64) != Ok(true) {
            return Err(format!("some of the {} bytes at {from:#x} were never written", bytes.len()));
        }
        values.extend(bytes.chunks_exact(2).map(|two| read(u16::from_le_bytes([two[0], two[1]]), layout.kind)));
    }
    Ok(values)
}

impl Factor {
    /// A matrix of the batch with the inner axis last: row by row for the left factor, column by column for the right one.
    fn along_k(&self, memory: &Memory, at: u64, is_left: bool) -> Result<Vec<f32>, String> {
        let values = matrix(memory, &self.layout, self.address, at)?;
        if self.is_transposed == is_left {
            return Ok(values);
        }
        let (rows, cols) = (self.layout.rows as usize, self.layout.cols as usize);
        Ok((0..rows * cols).map(|i| values[i % cols * rows + i / cols]).collect())
    }
}

impl Product {
    /// Computes it.
    pub(in crate::driver) fn run(&self, memory: &Memory) -> Result<(), (Code, String)> {
        self.computed(memory).map_err(|why| (ILLEGAL_ADDRESS, format!("cublasLtMatmul: {why}")))
    }

    fn computed(&self, memory: &Memory) -> Result<(), String> {
        // An algorithm leaves something or other in its workspace: here, numbers that are none.
        memory.fill(self.workspace, &[0xff], WORKSPACE as u64).map_err(|error| error.to_string())?;
        let (layout, address) = &self.to;
        let (m, n) = (layout.rows as usize, layout.cols as usize);
        for at in 0..layout.count as u64 {
            let (a, b) = (self.a.along_k(memory, at, true)?, self.b.along_k(memory, at, false)?);
            let old = if self.beta == 0.0 { vec![] } else { matrix(memory, layout, *address, at)? };
            let k = a.len() / m;
            for col in 0..n {
                let mut bytes = Vec::with_capacity(2 * m);
                for row in 0..m {
                    let pairs = a[row * k..][..k].iter().zip(&b[col * k..][..k]);
                    let sum: f64 = pairs.map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
                    let kept = old.get(col * m + row).map_or(0.0, |old| f64::from(self.beta) * f64::from(*old));
                    bytes.extend(rounded(f64::from(self.alpha) * sum + kept, layout.kind).to_le_bytes());
                }
                memory.write(column(layout, *address, at, col as u64), &bytes).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }
}

//! What stands in for cuBLASLt: products, and the mistakes of callers that it finds.

use super::alone;
use super::api::*;

/// A product of two matrices of bf16, 16 rows and columns each.
struct Asked {
    transpose_a: i32,
    lds: [i64; 3],
    count: i32,
    step: i64,
    reductions: u32,
    alignment: u32,
    /// Added to the address of the left factor, and to that of the result.
    shifts: [u64; 2],
    /// The inner size that the product says, where the algorithm was made for 16.
    other_k: u64,
    workspace: usize,
    beta: f32,
}

impl Default for Asked {
    fn default() -> Asked {
        Asked {
            transpose_a: 0,
            lds: [16; 3],
            count: 1,
            step: 0,
            reductions: 2,
            alignment: 16,
            shifts: [0; 2],
            other_k: 16,
            workspace: 4096,
            beta: 0.0,
        }
    }
}

fn layout(rows: u64, cols: u64, ld: i64, count: i32, step: i64) -> usize {
    let mut made = 0;
    call!(cublasLtMatrixLayoutCreate(&mut made => &mut usize, 14 => i32, rows => u64, cols => u64, ld => i64))
        .expect("a layout");
    call!(cublasLtMatrixLayoutSetAttribute(made => usize, 5 => u32, &count => &i32, 4 => usize)).expect("a layout");
    call!(cublasLtMatrixLayoutSetAttribute(made => usize, 6 => u32, &step => &i64, 8 => usize)).expect("a layout");
    made
}

/// The answer of the heuristic.
#[repr(C)]
#[derive(Default)]
struct Answer {
    algorithm: [u64; 8],
    workspace: usize,
    state: u32,
    waves: f32,
    reserved: [i32; 4],
}

impl Asked {
    /// The result's first number, where the left factor is a diagonal of ones times `scale` and the right one is the numbers
    /// from 1 on. The error is that of the heuristic or of the product.
    fn run(&self) -> Outcome<Vec<u16>> {
        let (mut library, mut desc, mut preference) = (0, 0, 0);
        call!(cublasLtCreate(&mut library => &mut usize))?;
        call!(cublasLtMatmulDescCreate(&mut desc => &mut usize, 68 => i32, 0 => i32))?;
        call!(cublasLtMatmulDescSetAttribute(desc => usize, 3 => u32, &self.transpose_a => &i32, 4 => usize))?;
        call!(cublasLtMatmulPreferenceCreate(&mut preference => &mut usize))?;
        let set = |which: u32, value: u64, bytes: usize| call!(cublasLtMatmulPreferenceSetAttribute(preference => usize, which => u32, &value => &u64, bytes => usize));
        set(1, 1 << 20, 8)?;
        set(3, self.reductions.into(), 4)?;
        (5..9).try_for_each(|which| set(which, self.alignment.into(), 4))?;
        let [of_a, of_b, of_c] = self.lds.map(|ld| layout(16, 16, ld, self.count, self.step));
        let (mut answer, mut found) = (Answer::default(), 0);
        call!(cublasLtMatmulAlgoGetHeuristic(
            library => usize, desc => usize, of_a => usize, of_b => usize, of_c => usize, of_c => usize,
            preference => usize, 1 => i32, &mut answer => &mut Answer, &mut found => &mut i32,
        ))?;
        assert_eq!((found, answer.state, answer.workspace), (1, 0, 4096));
        let [a, b, c, workspace] = [1024, 1024, 1024, 4096].map(|bytes| alloc(bytes).expect("memory"));
        let ones: Vec<u8> = (0..256).flat_map(|i| if i % 17 == 0 { [0x80, 0x3f] } else { [0, 0] }).collect();
        let numbers: Vec<u8> = (0..256u16).flat_map(|i| (0x3f80 + i % 7).to_le_bytes()).collect();
        write(a, &ones)?;
        write(b, &numbers)?;
        let of_b = if self.other_k == 16 { of_b } else { layout(self.other_k, 16, 16, 1, 0) };
        let stream = stream();
        call!(cublasLtMatmul(
            library => usize, desc => usize, &2f32 => &f32, a + self.shifts[0] => u64, of_a => usize, b => u64,
            of_b => usize, &self.beta => &f32, c + self.shifts[1] => u64, of_c => usize, c + self.shifts[1] => u64,
            of_c => usize, &answer.algorithm => &[u64; 8], workspace => u64, self.workspace => usize, stream => usize,
        ))?;
        stream_synchronize(stream)?;
        let bytes = read(c, 512)?;
        Ok(bytes.chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]])).collect())
    }
}

#[test]
fn a_product_is_computed() {
    let _alone = alone();
    start();
    let before = count("products");
    // Twice each number: the exponent is one more.
    let expected: Vec<u16> = (0..256).map(|i| 0x4000 + i % 7).collect();
    assert_eq!(Asked::default().run(), Ok(expected.clone()));
    assert_eq!(Asked { transpose_a: 1, alignment: 256, ..Asked::default() }.run(), Ok(expected));
    assert_eq!(count("products"), before + 2);
}

/// Asserts that the call is a fault with this text, and that the device is lost.
#[track_caller]
fn is_mistake(asked: Asked, text: &str) {
    start();
    let before = count("faults");
    assert!(asked.run().is_err(), "{text}");
    assert_eq!(count("faults"), before + 1, "{text}");
    assert!(fault().contains(text), "{} is not about: {text}", fault());
    assert!(alloc(8).is_err(), "{text}: the device is lost");
    reset();
}

#[test]
fn mistakes_of_a_caller_are_faults() {
    let _alone = alone();
    let asked = Asked::default;
    is_mistake(Asked { lds: [15, 16, 16], ..asked() }, "no room for its matrix");
    is_mistake(Asked { count: 2, step: 8, ..asked() }, "results overlap");
    is_mistake(Asked { reductions: 7, ..asked() }, "parts of sums");
    is_mistake(Asked { alignment: 24, ..asked() }, "an alignment is none");
    is_mistake(Asked { shifts: [8, 0], ..asked() }, "not aligned as was promised");
    is_mistake(Asked { shifts: [0, 2], ..asked() }, "not aligned as was promised");
    is_mistake(Asked { other_k: 8, ..asked() }, "not one for this product");
    is_mistake(Asked { workspace: 2048, ..asked() }, "the workspace is too small");
    // Found when the product is computed: a result beyond its memory, and numbers that were never written.
    is_mistake(Asked { shifts: [0, 768], ..asked() }, "past the end");
    is_mistake(Asked { shifts: [512, 0], ..asked() }, "never written");
    is_mistake(Asked { beta: 1.0, ..asked() }, "never written");
    start();
    assert!(asked().run().is_ok());
}

//! Planted bugs, to test that the search detects them.

use gradus::prelude::*;

use super::{Row, SHORT, rows};

const TABLE: &[Row] = rows! { SHORT;
    planted::panic |_d| {
        let all: &[Tensor] = &[];
        all[0].neg()
    };
    // Allocates more than the allocator's limit without `try_reserve`.
    planted::abort |d| { let n = 1 + d.below(2); Ok::<_, Error>(vec![1u8; n << 30]) };
    // Fails only when memory is short.
    planted::short |d| { let n = 3 + d.below(2); Ok::<_, Error>(vec![1u8; n << 20]) };
    // Takes more than the budget, but less than the allocator's limit.
    planted::memory |d| { let n = 150 + d.below(50); Ok::<_, Error>(vec![1u8; n << 20]) };
    planted::leak |d| { std::mem::forget(Tensor::zeros([3], DType::F32, &d.device)?); Ok::<_, Error>(()) };
    planted::hang |d| { std::thread::sleep(std::time::Duration::from_secs(1000)); d.any() };
    planted::overflow |d| {
        fn deeper(n: usize) -> usize {
            std::hint::black_box([n; 1000])[n % 1000] + if n == 0 { 0 } else { deeper(n - 1) }
        }
        Ok::<_, Error>(deeper(1_000_000 + d.below(2)))
    };
    // The caller's line is lost when a function is passed by path, so the error has none.
    planted::lineless |d| Some(d.any()?).map(|x| x.to_dtype(DType::I64)).transpose()?.as_ref().map(Tensor::with_grad).transpose();
    // Always returns a correct error, so it never has a result.
    planted::nothing |d| d.any()?.reshape([usize::MAX, usize::MAX]);
};

pub(super) const ROWS: &[&[Row]] = &[TABLE];

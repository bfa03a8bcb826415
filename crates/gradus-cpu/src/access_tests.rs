//! Tests of checked access.

use super::*;
use gradus_backend::Backend;

fn layout(dims: &[usize]) -> Layout {
    Layout::contiguous(Shape::new(dims).unwrap())
}

#[test]
fn views_that_leave_their_buffer_or_lie_are_refused() {
    let cpu = CpuBackend::with_threads(1).unwrap();
    let other = CpuBackend::with_threads(1).unwrap();
    let buffer = cpu.alloc(16).unwrap();
    let layouts: Vec<_> = (0..=16).map(|n| layout(&[n])).collect();
    let view = |n: usize, dtype| View { buffer: &buffer, dtype, layout: &layouts[n] };
    assert_eq!(cpu.slice::<f32>("t", view(4, DType::F32)).unwrap().len(), 4);
    assert!(cpu.slice::<f32>("t", view(5, DType::F32)).is_err());
    assert!(cpu.slice::<f32>("t", view(4, DType::I32)).is_err());
    assert!(cpu.slice::<u8>("t", view(16, DType::Bool)).is_ok());
    assert_eq!(other.slice::<f32>("t", view(4, DType::F32)).unwrap_err().kind(), &ErrorKind::DeviceMismatch);
    assert!(cpu.slice::<f32>("t", view(0, DType::F32)).is_ok());
}

//! Tests of checked access and of `Nest`.

use super::*;
use gradus_backend::Backend;

fn layout(dims: &[usize]) -> Layout {
    Layout::contiguous(Shape::new(dims).unwrap())
}

#[test]
fn nest_visits_the_positions_of_every_layout_in_row_major_order() {
    let base = layout(&[2, 3, 4]);
    let stretched = layout(&[3, 1]).expand(Shape::new(&[2, 3, 4]).unwrap()).unwrap();
    let views = [
        base,
        base.flip(1),
        stretched,
        layout(&[4, 3, 2]).permute(&[2, 1, 0]).unwrap(),
        layout(&[4, 6, 4]).slice(0, 1, 4, 2).unwrap().slice(1, 0, 6, 2).unwrap(),
    ];
    for a in &views {
        for b in &views {
            let nest = Nest::<3>::new(&[a, b]);
            assert_eq!(nest.numel(), 24);
            let want: Vec<_> = a.positions().zip(b.positions()).collect();
            let mut got = Vec::new();
            nest.for_each(0..7, |_, p| got.push((p[0], p[1])));
            nest.for_each(7..24, |_, p| got.push((p[0], p[1])));
            assert_eq!(got, want);
            assert!((0..24).all(|i| (nest.at(i)[0], nest.at(i)[1]) == want[i]));
        }
    }
    assert_eq!(Nest::<1>::new(&[&base]).dims(), [24]);
    assert_eq!(Nest::<2>::new(&[&base, &stretched]).dims(), [2, 3, 4]);
    assert_eq!(Nest::<1>::new(&[&layout(&[1, 1])]).dims(), [0usize; 0]);
    assert_eq!(Nest::<1>::new(&[&layout(&[2, 0])]).numel(), 0);
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

//! Sizes that depend on the dynamic axes, as arithmetic on the shapes of values.

use gradus_tensor::{DType, Result};

use super::build::{Builder, Dims};
use super::trace::Id;
use super::write::Attr;

/// A size: a number, or a tensor `[1]` of i64.
#[derive(Debug, Clone)]
pub(super) enum Size {
    Fixed(i64),
    Computed(String),
}

/// The size if it is the same in all traces.
pub(super) fn fixed(sizes: &[i64]) -> Option<i64> {
    sizes.iter().all(|s| *s == sizes[0]).then_some(sizes[0])
}

/// The places of ones that, inserted into `short`, give `long`.
fn inserted(short: &Dims, long: &Dims) -> Option<Vec<i64>> {
    let (mut at, mut ones) = (0, Vec::new());
    for (i, sizes) in long.iter().enumerate() {
        if short.get(at) == Some(sizes) && long.len() - i >= short.len() - at {
            at += 1;
        } else if sizes.iter().all(|&s| s == 1) {
            ones.push(i as i64);
        } else {
            return None;
        }
    }
    (at == short.len()).then_some(ones)
}

impl Builder<'_> {
    /// The size of an axis of a value, as a tensor `[1]`.
    fn axis_size(&mut self, value: &str, axis: usize) -> String {
        let (shape, axis) = (self.plain("Shape", &[value]), self.ints(&[axis as i64]));
        self.plain("Gather", &[&shape, &axis])
    }

    /// A size from its numbers in the traces. `near` are values that may have an axis of this size.
    pub(super) fn size(&mut self, at: usize, sizes: &[i64], near: &[Id]) -> Result<Size> {
        if let Some(size) = fixed(sizes) {
            return Ok(Size::Fixed(size));
        }
        if let Some(known) = self.sizes.get(sizes) {
            return Ok(Size::Computed(known.clone()));
        }
        let name = match self.derived(sizes, near)? {
            Some(name) => name,
            None => {
                let m = format!(
                    "it has a size that is {sizes:?} in traces of other sizes, and no known function of the dynamic axes"
                );
                let e = self.unsupported(at, m);
                return Err(self.symbols.iter().fold(e, |e, s| e.note(format!("{} was {:?}", s.name, s.sizes))));
            }
        };
        self.sizes.insert(sizes.to_vec(), name.clone());
        Ok(Size::Computed(name))
    }

    fn derived(&mut self, sizes: &[i64], near: &[Id]) -> Result<Option<String>> {
        let symbol = |b: &Self, i: usize| (b.symbols[i].input.clone(), b.symbols[i].axis);
        if let Some(i) = self.symbols.iter().position(|s| s.sizes == sizes) {
            let (input, axis) = symbol(self, i);
            return Ok(Some(self.axis_size(&input, axis)));
        }
        for &id in near {
            if let Some(axis) = self.dims(id).iter().position(|d| d == sizes) {
                let value = self.name(id)?;
                return Ok(Some(self.axis_size(&value, axis)));
            }
        }
        // A multiple or a part of a dynamic axis, or one that is longer or shorter by a number.
        for i in 0..self.symbols.len() {
            let of = self.symbols[i].sizes.clone();
            let pairs = || sizes.iter().zip(&of);
            let apart = fixed(&pairs().map(|(a, b)| a - b).collect::<Vec<_>>());
            let times = sizes[0].checked_div(of[0]).filter(|&f| f > 0 && pairs().all(|(a, b)| *a == b * f));
            let part = of[0].checked_div(sizes[0]).filter(|&f| f > 0 && pairs().all(|(a, b)| a * f == *b));
            let (op, number) = match (apart, times, part) {
                (_, Some(times), _) => ("Mul", times),
                (_, _, Some(part)) => ("Div", part),
                (Some(apart), ..) => ("Add", apart),
                _ => continue,
            };
            let (input, axis) = symbol(self, i);
            let (size, number) = (self.axis_size(&input, axis), self.ints(&[number]));
            return Ok(Some(self.plain(op, &[&size, &number])));
        }
        // The product of two dynamic axes and a number.
        for i in 0..self.symbols.len() {
            for j in i..self.symbols.len() {
                let both: Vec<i64> =
                    self.symbols[i].sizes.iter().zip(&self.symbols[j].sizes).map(|(a, b)| a * b).collect();
                let times = sizes[0].checked_div(both[0]).filter(|f| sizes.iter().zip(&both).all(|(s, b)| *s == b * f));
                let Some(times) = times.filter(|&f| f > 0) else { continue };
                let ((a, x), (b, y)) = (symbol(self, i), symbol(self, j));
                let (a, b) = (self.axis_size(&a, x), self.axis_size(&b, y));
                let product = self.plain("Mul", &[&a, &b]);
                let number = self.ints(&[times]);
                return Ok(Some(if times == 1 { product } else { self.plain("Mul", &[&product, &number]) }));
            }
        }
        // Any other value with an axis of this size.
        let mut known: Vec<(Id, String)> = self.names.iter().map(|(&id, name)| (id, name.clone())).collect();
        known.sort_unstable();
        let found = known.into_iter().find_map(|(id, name)| {
            let axis = self.dims(id).iter().position(|d| d == sizes)?;
            Some((name, axis))
        });
        Ok(found.map(|(value, axis)| self.axis_size(&value, axis)))
    }

    /// A vector of sizes.
    pub(super) fn shape(&mut self, sizes: Vec<Size>) -> String {
        let known: Option<Vec<i64>> =
            sizes.iter().map(|s| if let Size::Fixed(n) = s { Some(*n) } else { None }).collect();
        if let Some(known) = known {
            return self.ints(&known);
        }
        let parts: Vec<String> = sizes
            .into_iter()
            .map(|s| match s {
                Size::Fixed(n) => self.ints(&[n]),
                Size::Computed(name) => name,
            })
            .collect();
        if let [only] = &parts[..] {
            return only.clone();
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        self.node("Concat", &parts, vec![("axis", Attr::Int(0))], 0)
    }

    /// A size as a tensor of rank 0.
    pub(super) fn scalar_size(&mut self, at: usize, sizes: &[i64], near: &[Id]) -> Result<String> {
        match self.size(at, sizes, near)? {
            Size::Fixed(n) => self.scalar(n, DType::I64),
            Size::Computed(name) => {
                let axes = self.ints(&[0]);
                Ok(self.plain("Squeeze", &[&name, &axes]))
            }
        }
    }

    /// A value in another shape.
    pub(super) fn reshape(&mut self, at: usize, x: &str, from: &Dims, to: &Dims, near: &[Id]) -> Result<String> {
        // A value that was reshaped before is taken from its original.
        if let Some((original, dims)) = self.reshaped.get(x).cloned() {
            return self.reshape(at, &original, &dims, to, near);
        }
        if from == to {
            return Ok(x.to_owned());
        }
        let name = if to.iter().any(|sizes| fixed(sizes) == Some(0)) {
            // In the shape that a `Reshape` is given, 0 is the size of the input. A value without elements is made anew.
            let dtype = self.dtypes.get(x).copied().unwrap_or(DType::F32);
            let zero = self.scalar(0, dtype)?;
            self.expanded(at, &zero, &Vec::new(), to, near)?
        } else if let Some(axes) = inserted(from, to) {
            let axes = self.ints(&axes);
            self.plain("Unsqueeze", &[x, &axes])
        } else if let Some(axes) = inserted(to, from) {
            let axes = self.ints(&axes);
            self.plain("Squeeze", &[x, &axes])
        } else {
            let shape = self.new_shape(at, from, to, near)?;
            self.plain("Reshape", &[x, &shape])
        };
        self.reshaped.insert(name.clone(), (x.to_owned(), from.clone()));
        Ok(name)
    }

    /// The shape that a `Reshape` is given: sizes, 0 for a size that stays, and at most one -1.
    fn new_shape(&mut self, at: usize, from: &Dims, to: &Dims, near: &[Id]) -> Result<String> {
        let stays = |i: usize| from.get(i) == Some(&to[i]);
        let open: Vec<usize> = (0..to.len()).filter(|&i| fixed(&to[i]).is_none() && !stays(i)).collect();
        let is_empty = to.iter().any(|sizes| sizes.contains(&0));
        let mut parts = Vec::new();
        let mut inferred = false;
        for (i, sizes) in to.iter().enumerate() {
            parts.push(match fixed(sizes) {
                Some(size) => Size::Fixed(size),
                None if stays(i) => Size::Fixed(0),
                None if open.last() == Some(&i) && !inferred && !is_empty => {
                    inferred = true;
                    Size::Fixed(-1)
                }
                None => match self.size(at, sizes, near) {
                    Ok(size) => size,
                    Err(e) if inferred || is_empty => return Err(e),
                    Err(_) => {
                        inferred = true;
                        Size::Fixed(-1)
                    }
                },
            });
        }
        Ok(self.shape(parts))
    }
}

//! The reference's arithmetic: immutable scalars, each with the operation that produced it, and their derivatives.
//!
//! Values are numbered entries of a list, and derivatives are added to the same list. So nothing can be overwritten,
//! freed or shared by mistake, and derivatives of every order use the same few lines.

/// The number of a value.
pub(crate) type Id = u32;

/// How a value was made.
#[derive(Clone, Copy)]
enum Made {
    Constant,
    Leaf,
    Copy(Id),
    Neg(Id),
    Add(Id, Id),
    Sub(Id, Id),
    Mul(Id, Id),
    Div(Id, Id),
    Exp(Id),
    Log(Id),
    Sin(Id),
    Cos(Id),
    Tanh(Id),
    Sqrt(Id),
}

/// What a hook does to the derivative that passes through it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bend {
    /// It is multiplied by a number.
    Scale(f64),
    /// It is replaced by its hyperbolic tangent, which is nonlinear, so that only the complete derivative gives the
    /// right number.
    Tanh,
}

/// Hooks on derivatives, each with the value that it belongs to.
#[derive(Default)]
pub(crate) struct Bends {
    /// Applied, in this order, to the derivative that callers receive.
    pub(crate) visible: Vec<(Id, Bend)>,
    /// Applied to the derivative that is passed on.
    pub(crate) onwards: Vec<(Id, Bend)>,
}

/// The list of all values.
#[derive(Default, Clone)]
pub(crate) struct Tape {
    made: Vec<Made>,
    values: Vec<f64>,
    /// Whether each value depends on a leaf.
    moving: Vec<bool>,
    /// The largest magnitude so far; infinite after a NaN.
    pub(crate) largest: f64,
    /// Whether a choice depended on a difference too small to trust.
    pub(crate) undecided: bool,
}

/// If two numbers are closer than this, different rounding may order them differently.
const TIE: f64 = 1e-6;

impl Tape {
    fn push(&mut self, made: Made, value: f64, moving: bool) -> Id {
        let magnitude = if value.is_finite() { value.abs() } else { f64::INFINITY };
        self.largest = self.largest.max(magnitude);
        self.made.push(made);
        self.values.push(value);
        self.moving.push(moving);
        (self.values.len() - 1) as Id
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// Discards all values but the first `len`.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.made.truncate(len);
        self.values.truncate(len);
        self.moving.truncate(len);
    }

    pub(crate) fn value(&self, id: Id) -> f64 {
        self.values[id as usize]
    }

    pub(crate) fn moves(&self, id: Id) -> bool {
        self.moving[id as usize]
    }

    pub(crate) fn constant(&mut self, value: f64) -> Id {
        self.push(Made::Constant, value, false)
    }

    pub(crate) fn leaf(&mut self, value: f64) -> Id {
        self.push(Made::Leaf, value, true)
    }

    /// A new value equal to `a` that has a derivative even if `a` has none: an element of a tracked tensor.
    pub(crate) fn element(&mut self, a: Id) -> Id {
        self.push(Made::Copy(a), self.value(a), true)
    }

    /// A new value equal to `a`.
    pub(crate) fn copy(&mut self, a: Id) -> Id {
        self.copy_with(a, self.value(a))
    }

    /// A copy of `a` with another number. Its derivative is passed on to `a` unchanged.
    pub(crate) fn copy_with(&mut self, a: Id, value: f64) -> Id {
        self.push(Made::Copy(a), value, self.moves(a))
    }

    fn unary(&mut self, made: Made, a: Id, value: f64) -> Id {
        self.push(made, value, self.moves(a))
    }

    fn binary(&mut self, made: Made, a: Id, b: Id, value: f64) -> Id {
        self.push(made, value, self.moves(a) || self.moves(b))
    }

    pub(crate) fn neg(&mut self, a: Id) -> Id {
        self.unary(Made::Neg(a), a, -self.value(a))
    }
    pub(crate) fn exp(&mut self, a: Id) -> Id {
        self.unary(Made::Exp(a), a, self.value(a).exp())
    }
    pub(crate) fn log(&mut self, a: Id) -> Id {
        self.unary(Made::Log(a), a, self.value(a).ln())
    }
    pub(crate) fn sin(&mut self, a: Id) -> Id {
        self.unary(Made::Sin(a), a, self.value(a).sin())
    }
    pub(crate) fn cos(&mut self, a: Id) -> Id {
        self.unary(Made::Cos(a), a, self.value(a).cos())
    }
    pub(crate) fn tanh(&mut self, a: Id) -> Id {
        self.unary(Made::Tanh(a), a, self.value(a).tanh())
    }
    pub(crate) fn sqrt(&mut self, a: Id) -> Id {
        self.unary(Made::Sqrt(a), a, self.value(a).sqrt())
    }
    pub(crate) fn add(&mut self, a: Id, b: Id) -> Id {
        self.binary(Made::Add(a, b), a, b, self.value(a) + self.value(b))
    }
    pub(crate) fn sub(&mut self, a: Id, b: Id) -> Id {
        self.binary(Made::Sub(a, b), a, b, self.value(a) - self.value(b))
    }
    pub(crate) fn mul(&mut self, a: Id, b: Id) -> Id {
        self.binary(Made::Mul(a, b), a, b, self.value(a) * self.value(b))
    }
    pub(crate) fn div(&mut self, a: Id, b: Id) -> Id {
        self.binary(Made::Div(a, b), a, b, self.value(a) / self.value(b))
    }

    /// Whether `a < b`.
    pub(crate) fn less(&mut self, a: Id, b: Id) -> bool {
        let (x, y) = (self.value(a), self.value(b));
        let apart = (x - y).abs();
        self.undecided |= apart.is_nan() || apart <= TIE;
        x < y
    }

    pub(crate) fn max(&mut self, a: Id, b: Id) -> Id {
        if self.less(a, b) { b } else { a }
    }

    pub(crate) fn min(&mut self, a: Id, b: Id) -> Id {
        if self.less(a, b) { a } else { b }
    }

    /// The sum of several values; zero if there are none.
    pub(crate) fn sum(&mut self, ids: impl IntoIterator<Item = Id>) -> Id {
        let mut ids = ids.into_iter();
        let Some(first) = ids.next() else { return self.constant(0.0) };
        ids.fold(first, |a, b| self.add(a, b))
    }

    fn bend(&mut self, g: Id, bend: Bend) -> Id {
        match bend {
            Bend::Scale(c) => {
                let c = self.constant(c);
                self.mul(g, c)
            }
            Bend::Tanh => self.tanh(g),
        }
    }

    /// The derivatives of the weighted sum of the roots with respect to every value; `None` if the sum does not depend
    /// on the value.
    pub(crate) fn derivatives(&mut self, roots: &[(Id, Id)], bends: &Bends) -> Vec<Option<Id>> {
        let top = self.len();
        let mut found: Vec<Option<Id>> = vec![None; top];
        for &(root, weight) in roots {
            self.send(&mut found, root, weight);
        }
        for id in (0..top as Id).rev() {
            let Some(mut g) = found[id as usize] else { continue };
            for &(_, bend) in bends.visible.iter().filter(|b| b.0 == id) {
                g = self.bend(g, bend);
            }
            found[id as usize] = Some(g);
            for &(_, bend) in bends.onwards.iter().filter(|b| b.0 == id) {
                g = self.bend(g, bend);
            }
            self.pass(&mut found, id, g);
        }
        found
    }

    fn send(&mut self, found: &mut [Option<Id>], to: Id, g: Id) {
        if self.moves(to) {
            let slot = to as usize;
            found[slot] = Some(match found[slot] {
                Some(sum) => self.add(sum, g),
                None => g,
            });
        }
    }

    /// Passes the derivative `g` of value `id` on to its operands.
    fn pass(&mut self, found: &mut [Option<Id>], id: Id, g: Id) {
        match self.made[id as usize] {
            Made::Constant | Made::Leaf => {}
            Made::Copy(a) => self.send(found, a, g),
            Made::Neg(a) => {
                let g = self.neg(g);
                self.send(found, a, g);
            }
            Made::Add(a, b) => {
                self.send(found, a, g);
                self.send(found, b, g);
            }
            Made::Sub(a, b) => {
                self.send(found, a, g);
                let g = self.neg(g);
                self.send(found, b, g);
            }
            Made::Mul(a, b) => {
                if self.moves(a) {
                    let to_a = self.mul(g, b);
                    self.send(found, a, to_a);
                }
                if self.moves(b) {
                    let to_b = self.mul(g, a);
                    self.send(found, b, to_b);
                }
            }
            Made::Div(a, b) => {
                let g = self.div(g, b);
                self.send(found, a, g);
                if self.moves(b) {
                    let to_b = self.mul(g, id);
                    let to_b = self.neg(to_b);
                    self.send(found, b, to_b);
                }
            }
            Made::Exp(a) => {
                let g = self.mul(g, id);
                self.send(found, a, g);
            }
            Made::Log(a) => {
                let g = self.div(g, a);
                self.send(found, a, g);
            }
            Made::Sin(a) => {
                let slope = self.cos(a);
                let g = self.mul(g, slope);
                self.send(found, a, g);
            }
            Made::Cos(a) => {
                let slope = self.sin(a);
                let g = self.mul(g, slope);
                let g = self.neg(g);
                self.send(found, a, g);
            }
            Made::Tanh(a) => {
                let square = self.mul(id, id);
                let one = self.constant(1.0);
                let slope = self.sub(one, square);
                let g = self.mul(g, slope);
                self.send(found, a, g);
            }
            Made::Sqrt(a) => {
                let twice = self.add(id, id);
                let g = self.div(g, twice);
                self.send(found, a, g);
            }
        }
    }
}

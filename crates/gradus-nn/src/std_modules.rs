//! [`Module`] implementations for parameters, buffers and random states, and for types of the standard library.
//! Containers visit their contents; plain values are only printed.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use gradus_tensor::{DType, Device, Interpolation, Reduction, Result, Tensor};

use crate::failed_layer::Place;
use crate::loss::KlDivReduction;
use crate::{BagMode, Buffer, Item, ItemMut, Mode, Module, PaddingMode, Parameter, RandomState, Visitor, VisitorMut};

macro_rules! leaf {
    ($($type:ident as $item:ident;)*) => {$(
        impl Module for $type {
            fn visit(&self, visitor: &mut Visitor<'_>) {
                visitor.item(Item::$item(self));
            }
            fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
                visitor.item(ItemMut::$item(self));
            }
        }
    )*};
}
leaf! { Parameter as Parameter; Buffer as Buffer; RandomState as Random; }

impl Module for Mode {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.item(Item::Mode(*self));
    }
    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        visitor.item(ItemMut::Mode(self));
    }
}

macro_rules! plain {
    ($($type:ty),*) => {$(
        impl Module for $type {
            fn visit(&self, visitor: &mut Visitor<'_>) {
                visitor.item(Item::Setting(self));
            }
            fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}
        }
    )*};
}
plain!(bool, char, String, &'static str, f32, f64, DType);
plain!(BagMode, Interpolation, KlDivReduction, PaddingMode, Reduction);
plain!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);

macro_rules! silent {
    ($([$($generics:tt)*] $type:ty),*) => {$(
        impl<$($generics)*> Module for $type {
            fn visit(&self, _: &mut Visitor<'_>) {}
            fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}
        }
    )*};
}
silent!([] (), [] Device, [] fn(&Tensor) -> Result<Tensor>, [T: ?Sized + Send + Sync] PhantomData<T>);

impl<M: Module + ?Sized> Module for Box<M> {
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m>) {
        (**self).visit(visitor);
    }
    fn visit_mut<'m>(&'m mut self, visitor: &mut VisitorMut<'m>) {
        (**self).visit_mut(visitor);
    }
    fn place(&self) -> Place {
        (**self).place()
    }
}

impl<M: Module> Module for Option<M> {
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m>) {
        match self {
            Some(module) => module.visit(visitor),
            None => visitor.item(Item::Setting(&None::<()>)),
        }
    }
    fn visit_mut<'m>(&'m mut self, visitor: &mut VisitorMut<'m>) {
        if let Some(module) = self {
            module.visit_mut(visitor);
        }
    }
    fn place(&self) -> Place {
        self.as_ref().map_or_else(Default::default, Module::place)
    }
}

fn each<'m, M: Module>(modules: &'m [M], visitor: &mut Visitor<'m>) {
    for (i, module) in modules.iter().enumerate() {
        visitor.child(i.to_string(), module);
    }
}

fn each_mut<'m, M: Module>(modules: &'m mut [M], visitor: &mut VisitorMut<'m>) {
    for (i, module) in modules.iter_mut().enumerate() {
        visitor.child(i.to_string(), module);
    }
}

impl<M: Module> Module for Vec<M> {
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m>) {
        each(self, visitor);
    }
    fn visit_mut<'m>(&'m mut self, visitor: &mut VisitorMut<'m>) {
        each_mut(self, visitor);
    }
}

impl<M: Module, const N: usize> Module for [M; N] {
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m>) {
        each(self, visitor);
    }
    fn visit_mut<'m>(&'m mut self, visitor: &mut VisitorMut<'m>) {
        each_mut(self, visitor);
    }
}

impl<M: Module> Module for BTreeMap<String, M> {
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m>) {
        for (name, module) in self {
            visitor.child(name.as_str(), module);
        }
    }
    fn visit_mut<'m>(&'m mut self, visitor: &mut VisitorMut<'m>) {
        for (name, module) in self {
            visitor.child(name.as_str(), module);
        }
    }
}

macro_rules! tuple {
    ($($name:ident $index:tt),*) => {
        impl<$($name: Module),*> Module for ($($name,)*) {
            fn visit<'m>(&'m self, visitor: &mut Visitor<'m>) {
                $(visitor.child(stringify!($index), &self.$index);)*
            }
            fn visit_mut<'m>(&'m mut self, visitor: &mut VisitorMut<'m>) {
                $(visitor.child(stringify!($index), &mut self.$index);)*
            }
        }
    };
}
tuple!(A 0);
tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);
tuple!(A 0, B 1, C 2, D 3, E 4);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);

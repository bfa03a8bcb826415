//! The messages of `onnx.proto` that models need. Names and tensor data are slices of the file. Fields that are not
//! listed here are skipped.

use gradus_tensor::Result;

use crate::wire::{Field, Message, malformed};

/// A message that is read field by field.
pub(crate) trait Proto<'a>: Default {
    /// Reads one field. Fields with unknown numbers are skipped.
    fn field(&mut self, number: u64, field: Field<'a>, message: &Message<'a>) -> Result<()>;

    fn read(mut message: Message<'a>) -> Result<Self> {
        let mut this = Self::default();
        while let Some((number, field)) = message.next()? {
            this.field(number, field, &message)?;
        }
        Ok(this)
    }
}

fn nested<'a, T: Proto<'a>>(field: Field<'a>, message: &Message<'a>) -> Result<T> {
    T::read(message.inner(field)?)
}

#[derive(Debug, Default)]
pub(crate) struct Model<'a> {
    pub(crate) ir_version: i64,
    pub(crate) opsets: Vec<Opset<'a>>,
    pub(crate) producer: &'a str,
    pub(crate) producer_version: &'a str,
    pub(crate) graph: Option<Graph<'a>>,
    pub(crate) functions: Vec<Function<'a>>,
    pub(crate) metadata: Vec<Entry<'a>>,
}

impl<'a> Proto<'a> for Model<'a> {
    fn field(&mut self, number: u64, field: Field<'a>, m: &Message<'a>) -> Result<()> {
        match number {
            1 => self.ir_version = field.int()?,
            2 => self.producer = field.text()?,
            3 => self.producer_version = field.text()?,
            7 => self.graph = Some(nested(field, m)?),
            8 => self.opsets.push(nested(field, m)?),
            14 => self.metadata.push(nested(field, m)?),
            25 => self.functions.push(nested(field, m)?),
            _ => {}
        }
        Ok(())
    }
}

/// `OperatorSetIdProto`
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Opset<'a> {
    pub(crate) domain: &'a str,
    pub(crate) version: i64,
}

impl<'a> Proto<'a> for Opset<'a> {
    fn field(&mut self, number: u64, field: Field<'a>, _: &Message<'a>) -> Result<()> {
        match number {
            1 => self.domain = field.text()?,
            2 => self.version = field.int()?,
            _ => {}
        }
        Ok(())
    }
}

/// `StringStringEntryProto`
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) key: &'a str,
    pub(crate) value: &'a str,
}

impl<'a> Proto<'a> for Entry<'a> {
    fn field(&mut self, number: u64, field: Field<'a>, _: &Message<'a>) -> Result<()> {
        match number {
            1 => self.key = field.text()?,
            2 => self.value = field.text()?,
            _ => {}
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(crate) struct Graph<'a> {
    pub(crate) name: &'a str,
    pub(crate) nodes: Vec<Node<'a>>,
    pub(crate) initializers: Vec<Tensor<'a>>,
    /// The number of sparse initialisers.
    pub(crate) sparse: usize,
    pub(crate) inputs: Vec<ValueInfo<'a>>,
    pub(crate) outputs: Vec<ValueInfo<'a>>,
}

impl<'a> Proto<'a> for Graph<'a> {
    fn field(&mut self, number: u64, field: Field<'a>, m: &Message<'a>) -> Result<()> {
        match number {
            1 => self.nodes.push(nested(field, m)?),
            2 => self.name = field.text()?,
            5 => self.initializers.push(nested(field, m)?),
            11 => self.inputs.push(nested(field, m)?),
            12 => self.outputs.push(nested(field, m)?),
            15 => self.sparse += 1,
            _ => {}
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(crate) struct Node<'a> {
    pub(crate) inputs: Vec<&'a str>,
    pub(crate) outputs: Vec<&'a str>,
    pub(crate) name: &'a str,
    pub(crate) op: &'a str,
    pub(crate) domain: &'a str,
    pub(crate) overload: &'a str,
    pub(crate) attributes: Vec<Attribute<'a>>,
}

impl<'a> Proto<'a> for Node<'a> {
    fn field(&mut self, number: u64, field: Field<'a>, m: &Message<'a>) -> Result<()> {
        match number {
            1 => self.inputs.push(field.text()?),
            2 => self.outputs.push(field.text()?),
            3 => self.name = field.text()?,
            4 => self.op = field.text()?,
            5 => self.attributes.push(nested(field, m)?),
            7 => self.domain = field.text()?,
            8 => self.overload = field.text()?,
            _ => {}
        }
        Ok(())
    }
}

/// An attribute. `kind` is `AttributeProto.AttributeType`; older files leave it out.
#[derive(Debug, Default)]
pub(crate) struct Attribute<'a> {
    pub(crate) name: &'a str,
    pub(crate) reference: &'a str,
    pub(crate) kind: i64,
    pub(crate) float: Option<f32>,
    pub(crate) int: Option<i64>,
    pub(crate) text: Option<&'a [u8]>,
    pub(crate) tensor: Option<Box<Tensor<'a>>>,
    pub(crate) graph: Option<Box<Graph<'a>>>,
    /// Little-endian f32.
    pub(crate) floats: Vec<u8>,
    pub(crate) ints: Vec<i64>,
    pub(crate) texts: Vec<&'a [u8]>,
    pub(crate) tensors: Vec<Tensor<'a>>,
    pub(crate) has_sparse: bool,
}

impl<'a> Proto<'a> for Attribute<'a> {
    fn field(&mut self, number: u64, field: Field<'a>, m: &Message<'a>) -> Result<()> {
        match number {
            1 => self.name = field.text()?,
            2 => self.float = Some(field.float()?),
            3 => self.int = Some(field.int()?),
            4 => self.text = Some(field.bytes()?),
            5 => self.tensor = Some(Box::new(nested(field, m)?)),
            6 => self.graph = Some(Box::new(nested(field, m)?)),
            7 => field.fixed(4, &mut self.floats)?,
            8 => field.ints(&mut self.ints)?,
            9 => self.texts.push(field.bytes()?),
            10 => self.tensors.push(nested(field, m)?),
            20 => self.kind = field.int()?,
            21 => self.reference = field.text()?,
            22 | 23 => self.has_sparse = true,
            _ => {}
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(crate) struct Tensor<'a> {
    pub(crate) name: &'a str,
    pub(crate) dims: Vec<i64>,
    pub(crate) dtype: i64,
    pub(crate) raw: Option<&'a [u8]>,
    /// `float_data` and `double_data`, little-endian.
    pub(crate) fixed: Vec<u8>,
    /// `int32_data`, `int64_data` and `uint64_data`.
    pub(crate) ints: Vec<i64>,
    pub(crate) texts: Vec<&'a [u8]>,
    pub(crate) external: Vec<Entry<'a>>,
    pub(crate) is_external: bool,
}

impl<'a> Proto<'a> for Tensor<'a> {
    fn field(&mut self, number: u64, field: Field<'a>, m: &Message<'a>) -> Result<()> {
        match number {
            1 => field.ints(&mut self.dims)?,
            2 => self.dtype = field.int()?,
            3 => return Err(malformed("a tensor in segments, which no version of ONNX allows")),
            4 => field.fixed(4, &mut self.fixed)?,
            5 | 7 | 11 => field.ints(&mut self.ints)?,
            6 => self.texts.push(field.bytes()?),
            8 => self.name = field.text()?,
            9 => self.raw = Some(field.bytes()?),
            10 => field.fixed(8, &mut self.fixed)?,
            13 => self.external.push(nested(field, m)?),
            14 => self.is_external = field.int()? == 1,
            _ => {}
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(crate) struct Function<'a> {
    pub(crate) name: &'a str,
    pub(crate) inputs: Vec<&'a str>,
    pub(crate) outputs: Vec<&'a str>,
    /// The attributes without a default.
    pub(crate) attributes: Vec<&'a str>,
    pub(crate) defaults: Vec<Attribute<'a>>,
    pub(crate) nodes: Vec<Node<'a>>,
    pub(crate) opsets: Vec<Opset<'a>>,
    pub(crate) domain: &'a str,
    pub(crate) overload: &'a str,
}

impl<'a> Proto<'a> for Function<'a> {
    fn field(&mut self, number: u64, field: Field<'a>, m: &Message<'a>) -> Result<()> {
        match number {
            1 => self.name = field.text()?,
            4 => self.inputs.push(field.text()?),
            5 => self.outputs.push(field.text()?),
            6 => self.attributes.push(field.text()?),
            7 => self.nodes.push(nested(field, m)?),
            9 => self.opsets.push(nested(field, m)?),
            10 => self.domain = field.text()?,
            11 => self.defaults.push(nested(field, m)?),
            13 => self.overload = field.text()?,
            _ => {}
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(crate) struct ValueInfo<'a> {
    pub(crate) name: &'a str,
    pub(crate) of: Option<Type<'a>>,
}

impl<'a> Proto<'a> for ValueInfo<'a> {
    fn field(&mut self, number: u64, field: Field<'a>, m: &Message<'a>) -> Result<()> {
        match number {
            1 => self.name = field.text()?,
            2 => self.of = Some(nested(field, m)?),
            _ => {}
        }
        Ok(())
    }
}

/// `TypeProto`
#[derive(Debug, Default)]
pub(crate) struct Type<'a> {
    pub(crate) tensor: Option<TensorType<'a>>,
    pub(crate) sequence: Option<Box<Type<'a>>>,
    pub(crate) optional: Option<Box<Type<'a>>>,
    /// A map or a sparse tensor, which are not supported.
    pub(crate) other: bool,
}

impl<'a> Proto<'a> for Type<'a> {
    fn field(&mut self, number: u64, field: Field<'a>, m: &Message<'a>) -> Result<()> {
        match number {
            1 => self.tensor = Some(nested(field, m)?),
            4 => self.sequence = nested::<Wrapped<'a>>(field, m)?.0,
            9 => self.optional = nested::<Wrapped<'a>>(field, m)?.0,
            5 | 7 | 8 => self.other = true,
            _ => {}
        }
        Ok(())
    }
}

/// `TypeProto.Sequence` and `TypeProto.Optional`: a type within a message.
#[derive(Default)]
struct Wrapped<'a>(Option<Box<Type<'a>>>);

impl<'a> Proto<'a> for Wrapped<'a> {
    fn field(&mut self, number: u64, field: Field<'a>, m: &Message<'a>) -> Result<()> {
        if number == 1 {
            self.0 = Some(Box::new(nested(field, m)?));
        }
        Ok(())
    }
}

/// `TypeProto.Tensor`
#[derive(Debug, Default)]
pub(crate) struct TensorType<'a> {
    pub(crate) dtype: i64,
    pub(crate) shape: Option<Shape<'a>>,
}

impl<'a> Proto<'a> for TensorType<'a> {
    fn field(&mut self, number: u64, field: Field<'a>, m: &Message<'a>) -> Result<()> {
        match number {
            1 => self.dtype = field.int()?,
            2 => self.shape = Some(nested(field, m)?),
            _ => {}
        }
        Ok(())
    }
}

/// `TensorShapeProto`
#[derive(Debug, Default)]
pub(crate) struct Shape<'a>(pub(crate) Vec<Dim<'a>>);

impl<'a> Proto<'a> for Shape<'a> {
    fn field(&mut self, number: u64, field: Field<'a>, m: &Message<'a>) -> Result<()> {
        if number == 1 {
            self.0.push(nested(field, m)?);
        }
        Ok(())
    }
}

/// `TensorShapeProto.Dimension`: a size, a name, or neither.
#[derive(Debug, Default)]
pub(crate) struct Dim<'a> {
    pub(crate) size: Option<i64>,
    pub(crate) name: &'a str,
}

impl<'a> Proto<'a> for Dim<'a> {
    fn field(&mut self, number: u64, field: Field<'a>, _: &Message<'a>) -> Result<()> {
        match number {
            1 => self.size = Some(field.int()?),
            2 => self.name = field.text()?,
            _ => {}
        }
        Ok(())
    }
}

/// `SequenceProto` and `OptionalProto`, whose fields have the same numbers up to that of tensors.
#[derive(Debug, Default)]
pub(crate) struct Sequence<'a> {
    pub(crate) kind: i64,
    pub(crate) tensors: Vec<Tensor<'a>>,
    pub(crate) sequences: Vec<Sequence<'a>>,
    pub(crate) optionals: Vec<Sequence<'a>>,
}

impl<'a> Proto<'a> for Sequence<'a> {
    fn field(&mut self, number: u64, field: Field<'a>, m: &Message<'a>) -> Result<()> {
        match number {
            2 => self.kind = field.int()?,
            3 => self.tensors.push(nested(field, m)?),
            5 => self.sequences.push(nested(field, m)?),
            7 => self.optionals.push(nested(field, m)?),
            _ => {}
        }
        Ok(())
    }
}

//! [`OnnxValue`]: the values that a model passes from node to node. Tensors are on the device, on the host (small
//! integers), or both.

use std::sync::{Arc, OnceLock};

use gradus_tensor::{DType, Device, Error, ErrorKind, Result, Storage, Tensor};

use crate::elem::Elem;
use crate::small_float;

/// A value of a model.
#[derive(Debug, Clone)]
pub enum OnnxValue {
    /// A tensor.
    Tensor(Array),
    /// A tensor of strings.
    Strings(Arc<Strings>),
    /// A sequence of values.
    Sequence(Arc<Vec<OnnxValue>>),
    /// An optional value.
    Optional(Option<Arc<OnnxValue>>),
    /// A map from strings or integers to numbers.
    Map(Arc<OnnxMap>),
}

/// A map from strings or integers to numbers.
#[derive(Debug, Clone)]
pub struct OnnxMap {
    /// The keys, each once: strings, or a tensor of int64.
    pub keys: OnnxValue,
    /// The value of each key.
    pub values: Array,
}

/// A tensor of strings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Strings {
    /// The sizes of the axes.
    pub shape: Vec<usize>,
    /// The strings, in row-major order.
    pub values: Vec<String>,
}

/// A tensor of a model, with its element type. A copy shares the memory.
#[derive(Debug, Clone)]
pub struct Array(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    elem: Elem,
    shape: Vec<usize>,
    /// The elements on the host, for an integer type or bool. At least one of `ints` and `tensor` is set.
    ints: OnceLock<Arc<[i64]>>,
    tensor: OnceLock<Tensor>,
    /// The elements on the host as f64.
    floats: OnceLock<Arc<[f64]>>,
    /// The version of the memory of `tensor` when this was made from it. What is on the host is that of this version.
    version: Option<u64>,
}

impl Array {
    /// Wraps a tensor of a native dtype.
    pub fn new(tensor: Tensor) -> Array {
        let elem = Elem::of_dtype(tensor.dtype());
        Array::stored(elem, tensor)
    }

    /// Wraps a tensor whose dtype is the one that stores `elem`.
    pub(crate) fn stored(elem: Elem, tensor: Tensor) -> Array {
        let shape = tensor.shape().to_vec();
        let version = Some(tensor.storage().version());
        let (ints, floats) = (OnceLock::new(), OnceLock::new());
        Array(Arc::new(Inner { elem, shape, ints, tensor: tensor.into(), floats, version }))
    }

    /// Wraps integers or booleans on the host. Their number must be that of the shape.
    pub(crate) fn host(elem: Elem, shape: Vec<usize>, ints: Vec<i64>) -> Array {
        let ints = OnceLock::from(Arc::from(ints));
        let (tensor, floats) = (OnceLock::new(), OnceLock::new());
        Array(Arc::new(Inner { elem, shape, ints, tensor, floats, version: None }))
    }

    /// The element type.
    pub fn elem(&self) -> Elem {
        self.0.elem
    }

    /// The sizes of the axes.
    pub fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    /// The number of elements.
    pub(crate) fn numel(&self) -> usize {
        self.0.shape.iter().product()
    }

    /// The elements, if they are already on the host.
    pub(crate) fn on_host(&self) -> Option<&[i64]> {
        self.0.ints.get().filter(|_| self.is_unchanged()).map(|ints| &**ints)
    }

    /// Whether nobody has written to the tensor since this was made from it.
    fn is_unchanged(&self) -> bool {
        self.0.version.is_none_or(|was| self.storage().is_none_or(|storage| storage.version() == was))
    }

    /// Whether this is a tensor that requires a gradient.
    pub(crate) fn requires_grad(&self) -> bool {
        self.0.tensor.get().is_some_and(Tensor::requires_grad)
    }

    /// The memory of the elements on the device.
    pub(crate) fn storage(&self) -> Option<&Arc<Storage>> {
        self.0.tensor.get().map(Tensor::storage)
    }

    /// The tensor that stores the elements: the values, or the bits of fp8 and fp4.
    pub(crate) fn raw(&self, device: &Device) -> Result<Tensor> {
        if let Some(tensor) = self.0.tensor.get() {
            return Ok(tensor.clone());
        }
        let ints = self.on_host().unwrap_or_default();
        let tensor = upload(ints, self.shape(), self.0.elem.stored(), device)?;
        Ok(self.0.tensor.get_or_init(|| tensor).clone())
    }

    /// The tensor on the device. Fails for the element types that Gradus does not compute with.
    #[track_caller]
    pub fn tensor(&self, device: &Device) -> Result<Tensor> {
        if self.0.elem.is_native() {
            return self.raw(device);
        }
        let m = format!("a tensor of {}, which is stored but not computed with", self.0.elem.name());
        Err(Error::new(ErrorKind::UnsupportedDType, "onnx", m).help("convert it with Cast or DequantizeLinear"))
    }

    /// The elements as f64, in row-major order.
    #[track_caller]
    pub fn to_f64(&self, device: &Device) -> Result<Vec<f64>> {
        let raw = self.raw(device)?;
        let values = if self.0.elem.is_small_float() { small_float::decode(self.0.elem, &raw)? } else { raw };
        host_floats(&values)
    }

    /// The integers or booleans, downloaded at most once.
    pub(crate) fn ints(&self) -> Result<Arc<[i64]>> {
        let is_unchanged = self.is_unchanged();
        if let Some(ints) = self.0.ints.get().filter(|_| is_unchanged) {
            return Ok(ints.clone());
        }
        let Some(tensor) = self.0.tensor.get() else { return Ok(Arc::from([])) };
        let ints: Arc<[i64]> = download(tensor)?.into();
        Ok(if is_unchanged { self.0.ints.get_or_init(|| ints).clone() } else { ints })
    }

    /// The numbers of a native dtype as f64, downloaded at most once unless they change. For few numbers.
    pub(crate) fn floats(&self) -> Result<Arc<[f64]>> {
        let is_unchanged = self.is_unchanged();
        if let Some(floats) = self.0.floats.get().filter(|_| is_unchanged) {
            return Ok(floats.clone());
        }
        if !self.0.elem.is_native() {
            let m = format!("numbers of {} where floats belong", self.0.elem.name());
            return Err(Error::new(ErrorKind::UnsupportedDType, "onnx", m).help("convert them with Cast"));
        }
        let floats: Arc<[f64]> = match (self.on_host(), self.0.tensor.get()) {
            (Some(ints), _) if self.0.elem == Elem::U64 => ints.iter().map(|&v| v as u64 as f64).collect(),
            (Some(ints), _) => ints.iter().map(|&v| v as f64).collect(),
            (None, Some(tensor)) => host_floats(tensor)?.into(),
            (None, None) => Arc::from([]),
        };
        let is_fixed = is_unchanged && !self.requires_grad();
        Ok(if is_fixed { self.0.floats.get_or_init(|| floats).clone() } else { floats })
    }

    /// The single number in this array.
    pub(crate) fn number(&self) -> Result<f64> {
        if self.numel() == 1
            && let &[number] = &*self.floats()?
        {
            return Ok(number);
        }
        Err(Error::shape("onnx", format!("one number belongs here, not shape {:?}", self.shape())))
    }
}

/// Downloads the elements as f64. Works on devices without f64 too.
pub(crate) fn host_floats(tensor: &Tensor) -> Result<Vec<f64>> {
    match tensor.dtype() {
        DType::F64 => tensor.to_vec::<f64>(),
        d if d.is_float() => Ok(tensor.to_dtype(DType::F32)?.to_vec::<f32>()?.into_iter().map(f64::from).collect()),
        DType::U64 => Ok(tensor.to_vec::<u64>()?.into_iter().map(|v| v as f64).collect()),
        _ => Ok(download(tensor)?.into_iter().map(|v| v as f64).collect()),
    }
}

/// Creates a tensor from numbers that the host computed. Works on devices without f64 too.
pub(crate) fn device_floats(values: &[f64], shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    if dtype == DType::F64 {
        return Tensor::from_vec(values, shape, device);
    }
    Tensor::from_vec(values.iter().map(|&v| v as f32).collect::<Vec<_>>(), shape, device)?.to_dtype(dtype)
}

/// Makes a tensor of integers or booleans.
pub(crate) fn upload(ints: &[i64], shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    macro_rules! of {
        ($($dtype:ident $t:ty),*) => {
            match dtype {
                DType::I64 => Tensor::from_vec(ints, shape, device),
                DType::Bool => Tensor::from_vec(ints.iter().map(|&v| v != 0).collect::<Vec<_>>(), shape, device),
                $(DType::$dtype => Tensor::from_vec(ints.iter().map(|&v| v as $t).collect::<Vec<_>>(), shape, device),)*
                other => Tensor::from_vec(ints.iter().map(|&v| v as f64).collect::<Vec<_>>(), shape, device)?.to_dtype(other),
            }
        };
    }
    of!(I32 i32, I16 i16, I8 i8, U64 u64, U32 u32, U16 u16, U8 u8)
}

/// Downloads a tensor of integers or booleans. The bits of u64 are kept.
pub(crate) fn download(tensor: &Tensor) -> Result<Vec<i64>> {
    macro_rules! of {
        ($($dtype:ident $t:ty),*) => {
            match tensor.dtype() {
                $(DType::$dtype => Ok(tensor.to_vec::<$t>()?.into_iter().map(|v| v as i64).collect()),)*
                other => Err(Error::dtype("onnx", other, "integers or booleans")),
            }
        };
    }
    of!(I64 i64, I32 i32, I16 i16, I8 i8, U64 u64, U32 u32, U16 u16, U8 u8, Bool bool)
}

/// The bytes of a value on the device, or on the host.
pub(crate) fn bytes_of(value: &OnnxValue) -> usize {
    match value {
        OnnxValue::Tensor(a) if a.on_host().is_some() => a.numel().saturating_mul(size_of::<i64>()),
        OnnxValue::Tensor(a) => a.numel().saturating_mul(a.elem().stored().size()),
        OnnxValue::Strings(s) => s.values.iter().map(|text| text.len() + size_of::<String>()).sum(),
        OnnxValue::Sequence(values) => values.iter().map(bytes_of).sum(),
        OnnxValue::Optional(value) => value.as_deref().map_or(0, bytes_of),
        OnnxValue::Map(map) => bytes_of(&map.keys).saturating_add(map.values.numel().saturating_mul(8)),
    }
}

impl OnnxValue {
    /// The element type, if this is a tensor of numbers.
    pub fn elem(&self) -> Option<Elem> {
        match self {
            OnnxValue::Tensor(array) => Some(array.elem()),
            _ => None,
        }
    }

    /// Describes the kind of the value, for errors.
    pub(crate) fn describe(&self) -> String {
        match self {
            OnnxValue::Tensor(a) => format!("a tensor {:?} of {}", a.shape(), a.elem().name()),
            OnnxValue::Strings(s) => format!("a tensor {:?} of strings", s.shape),
            OnnxValue::Sequence(values) => format!("a sequence of {}", values.len()),
            OnnxValue::Optional(Some(_)) => "an optional with a value".to_owned(),
            OnnxValue::Optional(None) => "an empty optional".to_owned(),
            OnnxValue::Map(map) => format!("a map of {} keys", map.values.numel()),
        }
    }
}

impl From<Tensor> for OnnxValue {
    fn from(tensor: Tensor) -> Self {
        OnnxValue::Tensor(Array::new(tensor))
    }
}

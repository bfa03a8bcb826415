//! Files of tensors: safetensors, NumPy's and PyTorch's. A file is checked before memory is taken, and nothing in it is
//! executed. A file that is written appears when it is complete.

use std::fs::write;

use crate::page::page;
use gradus::data::{npy, pt};
use gradus::prelude::*;

page! {
    "Files of tensors":
    a_file_of_weights_is_not_there,
    a_file_is_no_safetensors_file,
    a_safetensors_file_is_cut_off,
    a_dtype_is_not_supported,
    a_folder_to_write_to_is_not_there,
    a_name_cannot_be_saved,
    a_file_is_no_numpy_file,
    a_numpy_file_holds_objects,
    a_numpy_file_is_cut_off,
    a_file_is_not_of_torch_save,
    a_pickle_calls_a_function,
}

/// The path leads nowhere.
///
/// Mend: a relative path starts at the folder in which the program was started; the error shows it.
fn a_file_of_weights_is_not_there(device: &Device) -> Result<Error> {
    let mut rng = Generator::new(0);
    let mut model = Linear::new(2, 2, &mut Init::new(DType::F32, device, &mut rng))?;
    let error = model.load_safetensors("/models/linear.safetensors", device, Strict::Yes).unwrap_err();

    model.save_safetensors("linear.safetensors")?;
    model.load_safetensors("linear.safetensors", device, Strict::Yes)?;
    Ok(error)
}

/// The file is of another format. A page that says that a login is needed is a frequent one.
///
/// Mend: look at its first bytes. Files of `torch.save` are read by `gradus::data::pt::load`.
fn a_file_is_no_safetensors_file(device: &Device) -> Result<Error> {
    write("model.safetensors", "<!DOCTYPE html><title>Log in</title>").unwrap();
    let error = StateDict::load_safetensors("model.safetensors", device).unwrap_err();

    Ok(error)
}

/// The file is shorter than its header says: a download or a copy ended early.
///
/// Mend: download it again.
fn a_safetensors_file_is_cut_off(device: &Device) -> Result<Error> {
    let mut rng = Generator::new(0);
    let model = Linear::new(8, 8, &mut Init::new(DType::F32, device, &mut rng))?;
    model.save_safetensors("whole.safetensors")?;
    let bytes = std::fs::read("whole.safetensors").unwrap();
    write("cut.safetensors", &bytes[..bytes.len() - 50]).unwrap();
    let error = StateDict::load_safetensors("cut.safetensors", device).unwrap_err();

    StateDict::load_safetensors("whole.safetensors", device)?;
    Ok(error)
}

/// The file has tensors of a dtype that Gradus does not compute in, such as floats of 8 bits.
///
/// Mend: convert them where the file was made.
fn a_dtype_is_not_supported(device: &Device) -> Result<Error> {
    let header = r#"{"w":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}}"#;
    write("float8.safetensors", [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0; 4]].concat()).unwrap();
    let error = StateDict::load_safetensors("float8.safetensors", device).unwrap_err();

    let header = header.replace("F8_E4M3", "F16").replace("4]}", "8]}");
    write("float16.safetensors", [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0; 8]].concat()).unwrap();
    StateDict::load_safetensors("float16.safetensors", device)?;
    Ok(error)
}

/// The folder of the path does not exist. Saving makes files, not folders, so that a misspelt path is noticed.
///
/// Mend: make the folder with `std::fs::create_dir_all`.
fn a_folder_to_write_to_is_not_there(device: &Device) -> Result<Error> {
    let mut rng = Generator::new(0);
    let model = Linear::new(2, 2, &mut Init::new(DType::F32, device, &mut rng))?;
    let error = model.save_safetensors("models/linear.safetensors").unwrap_err();

    std::fs::create_dir_all("models").unwrap();
    model.save_safetensors("models/linear.safetensors")?;
    Ok(error)
}

/// The format keeps one name for its texts.
///
/// Mend: give the tensor another name.
fn a_name_cannot_be_saved(device: &Device) -> Result<Error> {
    let mut state = StateDict::new();
    state.insert("__metadata__", Tensor::ones([1], DType::F32, device)?);
    let error = state.save_safetensors("state.safetensors").unwrap_err();

    let tensor = state.remove("__metadata__").unwrap();
    state.insert("metadata", tensor);
    state.save_safetensors("state.safetensors")?;
    Ok(error)
}

/// The file does not begin as a `.npy` file does. An `.npz` file holds several arrays and has its own reader.
///
/// Mend: use `load_npz` for `.npz`, `Table::read_csv` for text.
fn a_file_is_no_numpy_file(device: &Device) -> Result<Error> {
    write("array.npy", "1 2 3\n4 5 6\n").unwrap();
    let error = npy::load("array.npy", device).unwrap_err();

    npy::save("array.npy", &Tensor::ones([2, 3], DType::F32, device)?)?;
    npy::load("array.npy", device)?;
    Ok(error)
}

/// An array of Python objects is a pickle, and so a program.
///
/// Mend: in NumPy, convert it to numbers: `a.astype("float32")`.
fn a_numpy_file_holds_objects(device: &Device) -> Result<Error> {
    let header = "{'descr': '|O', 'fortran_order': False, 'shape': (2,), }\n";
    write("objects.npy", [b"\x93NUMPY\x01\x00", &[header.len() as u8, 0][..], header.as_bytes()].concat()).unwrap();
    let error = npy::load("objects.npy", device).unwrap_err();

    Ok(error)
}

/// The file has fewer bytes than its shape needs.
///
/// Mend: copy it again.
fn a_numpy_file_is_cut_off(device: &Device) -> Result<Error> {
    npy::save("array.npy", &Tensor::ones([100], DType::F32, device)?)?;
    let bytes = std::fs::read("array.npy").unwrap();
    write("array.npy", &bytes[..200]).unwrap();
    let error = npy::load("array.npy", device).unwrap_err();

    write("array.npy", bytes).unwrap();
    npy::load("array.npy", device)?;
    Ok(error)
}

/// The file is not one of `torch.save`, neither in the zip format nor in the older one.
///
/// Mend: a safetensors file is read by `StateDict::load_safetensors`, a TorchScript file has to be saved again as
/// `torch.save(model.state_dict(), "model.pt")`.
fn a_file_is_not_of_torch_save(device: &Device) -> Result<Error> {
    write("model.pt", "version https://git-lfs.github.com/spec/v1\n").unwrap();
    let error = pt::load("model.pt", device).unwrap_err();

    Ok(error)
}

/// A pickle is a program that may call any Python function. Those of tensors and dicts are understood; every other name,
/// such as the class of a whole model or, as here, an attack, is an error. Nothing of it is executed.
///
/// Mend: in PyTorch, save the state dict instead of the model.
fn a_pickle_calls_a_function(device: &Device) -> Result<Error> {
    let magic = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}q\x00.";
    let attack = b"\x80\x02cos\nsystem\nX\x0a\x00\x00\x00rm -rf /x/\x85R.";
    write("attack.pt", [&magic[..], attack].concat()).unwrap();
    let error = pt::load("attack.pt", device).unwrap_err();

    Ok(error)
}

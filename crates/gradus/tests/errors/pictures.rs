//! Pictures: files, folders of them, and filters. In the snippets, `picture(path, device)` writes one of 64 x 64 pixels.

use std::fs::write;

use crate::page::page;
use gradus::image::{Border, LoadOptions, SaveOptions, gaussian_blur, load, normalize, resize, save};
use gradus::prelude::*;

page! {
    "Pictures":
    a_file_is_no_picture,
    a_picture_is_cut_off,
    a_picture_is_too_large,
    the_name_says_no_format,
    a_folder_has_no_classes,
    a_folder_of_a_class_is_empty,
    a_filter_takes_an_image_of_another_shape,
    a_picture_is_resized_to_nothing,
    a_blur_is_negative,
    a_mean_for_each_channel,
}

/// Writes a picture of 64 x 64 pixels.
fn picture(name: &str, device: &Device) -> Result<()> {
    let noise = Tensor::rand([3, 64, 64], DType::F32, device, &mut Generator::new(0))?;
    save(name, &noise, SaveOptions::default())
}

/// The file is neither PNG nor JPEG, whatever its name says.
///
/// Mend: convert it: `convert photo.webp photo.png`.
fn a_file_is_no_picture(device: &Device) -> Result<Error> {
    write("photo.png", b"RIFF\x24\x00\x00\x00WEBPVP8 ").unwrap();
    let error = load("photo.png", device, LoadOptions::default()).unwrap_err();

    picture("noise.png", device)?;
    load("noise.png", device, LoadOptions::default())?;
    Ok(error)
}

/// The file ends early. A picture that is half there is not used.
///
/// Mend: copy it again. To train on a folder with damaged files, remove them first.
fn a_picture_is_cut_off(device: &Device) -> Result<Error> {
    picture("cut.png", device)?;
    let bytes = std::fs::read("cut.png").unwrap();
    write("cut.png", &bytes[..bytes.len() / 2]).unwrap();
    let error = load("cut.png", device, LoadOptions::default()).unwrap_err();

    write("cut.png", bytes).unwrap();
    load("cut.png", device, LoadOptions::default())?;
    Ok(error)
}

/// The memory that a picture takes is computed from its header, before anything is decoded: a small file may hold an
/// enormous picture.
///
/// Mend: make it smaller first, or allow more memory.
fn a_picture_is_too_large(device: &Device) -> Result<Error> {
    picture("large.png", device)?;
    let error = load("large.png", device, LoadOptions { max_memory: 10_000, ..Default::default() }).unwrap_err();

    load("large.png", device, LoadOptions::default())?;
    Ok(error)
}

/// The format of a file that is written is that of its name.
///
/// Mend: end the name with `.png`, `.jpg` or `.jpeg`.
fn the_name_says_no_format(device: &Device) -> Result<Error> {
    let image = Tensor::zeros([3, 8, 8], DType::F32, device)?;
    let error = save("black.webp", &image, SaveOptions::default()).unwrap_err();

    save("black.png", &image, SaveOptions::default())?;
    Ok(error)
}

/// `ImageFolder` takes a folder for each class, and there are none: the images lie in the folder itself.
///
/// Mend: move them into `cats/`, `dogs/` and so on.
fn a_folder_has_no_classes(device: &Device) -> Result<Error> {
    std::fs::create_dir("photos").unwrap();
    picture("photos/cat.png", device)?;
    let error = ImageFolder::open("photos", Channels::Rgb, device).err().unwrap();

    ["classes/cats", "classes/dogs"].iter().for_each(|folder| std::fs::create_dir_all(folder).unwrap());
    picture("classes/cats/1.png", device)?;
    picture("classes/dogs/1.png", device)?;
    ImageFolder::open("classes", Channels::Rgb, device)?;
    Ok(error)
}

/// A folder is a class, and this one has no image.
///
/// Mend: remove the folder, or put images into it.
fn a_folder_of_a_class_is_empty(device: &Device) -> Result<Error> {
    ["pets/cats", "pets/dogs"].iter().for_each(|folder| std::fs::create_dir_all(folder).unwrap());
    picture("pets/cats/1.png", device)?;
    let error = ImageFolder::open("pets", Channels::Rgb, device).err().unwrap();

    picture("pets/dogs/1.png", device)?;
    ImageFolder::open("pets", Channels::Rgb, device)?;
    Ok(error)
}

/// Filters take `[channels, height, width]`, or `[n, channels, height, width]`.
///
/// Mend: insert the axis of channels; `from_hwc` moves the channels of a picture that has them last.
fn a_filter_takes_an_image_of_another_shape(device: &Device) -> Result<Error> {
    let pixels = Tensor::zeros([64, 64], DType::F32, device)?;
    let error = resize(&pixels, 32, 32).unwrap_err();

    resize(&pixels.unsqueeze(0)?, 32, 32)?;
    Ok(error)
}

/// A size became 0, often by integer division.
///
/// Mend: keep at least one pixel.
fn a_picture_is_resized_to_nothing(device: &Device) -> Result<Error> {
    let image = Tensor::zeros([3, 64, 64], DType::F32, device)?;
    let error = resize(&image, 64 / 100, 32).unwrap_err();

    resize(&image, 1, 32)?;
    Ok(error)
}

/// The width of a Gaussian is above 0.
///
/// Mend: `sharpen` is the opposite of a blur.
fn a_blur_is_negative(device: &Device) -> Result<Error> {
    let image = Tensor::zeros([3, 64, 64], DType::F32, device)?;
    let error = gaussian_blur(&image, -1.0, None, Border::default()).unwrap_err();

    gaussian_blur(&image, 1.0, None, Border::default())?;
    Ok(error)
}

/// `normalize` takes a mean and a deviation for each channel.
///
/// Mend: give as many as the picture has channels.
fn a_mean_for_each_channel(device: &Device) -> Result<Error> {
    let image = Tensor::zeros([3, 8, 8], DType::F32, device)?;
    let error = normalize(&image, &[0.5], &[0.25]).unwrap_err();

    normalize(&image, &[0.5; 3], &[0.25; 3])?;
    Ok(error)
}

//! Errors of tasks that need no code, when a target is chosen, a folder of pictures or a text is read, or a saved model is
//! used. In the snippets,
//! `saved(device)` trains nothing and saves a model for penguins as `penguins.safetensors`.

use crate::page::page;
use gradus::prelude::*;
use gradus::tasks::images;
use gradus::tasks::tabular::{Network, Options, Spec};
use gradus::tasks::text::{Corpus, Tokens};
use gradus::tasks::{self, write};

page! {
    "Tasks":
    a_target_is_constant,
    a_target_is_missing_in_a_row,
    a_target_has_too_many_classes,
    a_column_of_names_is_to_be_learned,
    a_table_has_the_target_only,
    a_file_was_not_saved_by_a_task,
    a_model_does_not_take_this_input,
    columns_of_training_are_gone,
    a_text_is_empty,
    a_text_is_too_short_for_its_context,
    pictures_are_of_one_class,
    a_class_has_too_few_pictures,
}

const CSV: &[u8] = b"species,bill,mass\nAdelie,39.1,3750\nGentoo,46.1,4500\nAdelie,37.0,3000\nGentoo,50.0,5700\n";

/// A table from text.
#[track_caller]
fn table(csv: &[u8]) -> Result<Table> {
    Table::from_csv(csv, "penguins.csv", &CsvOptions::default())
}

/// Saves a model for the table above, with the weights that it begins with.
fn saved(device: &Device) -> Result<()> {
    let spec = Spec::fit(&table(CSV)?, "species", Options::default())?;
    let network = Network::new(&spec, device, 0)?;
    let mut file = std::fs::File::create("penguins.safetensors").unwrap();
    write(&tasks::Spec::Tabular(spec), &network, &mut file)
}

/// A folder with a folder of pictures for each class, whose name and number of pictures are given.
fn pictures(folder: &str, classes: &[(&str, usize)], device: &Device) -> Result<()> {
    for &(class, count) in classes {
        std::fs::create_dir_all(format!("{folder}/{class}")).unwrap();
        for number in 0..count {
            let path = format!("{folder}/{class}/{number}.png");
            gradus::image::save(
                path,
                &Tensor::ones([3, 8, 8], DType::U8, device)?,
                gradus::image::SaveOptions::default(),
            )?;
        }
    }
    Ok(())
}

/// All rows have the same value, so there is nothing to learn.
///
/// Mend: choose another target, or look why the other rows are gone.
fn a_target_is_constant(_: &Device) -> Result<Error> {
    let all_adelie = table(b"species,mass\nAdelie,3750\nAdelie,3000\n")?;
    let error = Spec::fit(&all_adelie, "species", Options::default()).unwrap_err();

    Spec::fit(&table(CSV)?, "species", Options::default())?;
    Ok(error)
}

/// A row has no answer to learn from. Missing values of other columns are filled in, those of the target are not.
///
/// Mend: leave such rows out.
fn a_target_is_missing_in_a_row(_: &Device) -> Result<Error> {
    let gap = table(b"species,mass\nAdelie,3750\n,3000\nGentoo,5700\n")?;
    let error = Spec::fit(&gap, "species", Options::default()).unwrap_err();

    Spec::fit(&gap.rows(&[0, 2])?, "species", Options::default())?;
    Ok(error)
}

/// Nearly every row has a class of its own: the column is a name or a number of the row.
///
/// Mend: choose a column whose values repeat.
fn a_target_has_too_many_classes(_: &Device) -> Result<Error> {
    let rows: String = (0..1100).map(|i| format!("penguin {i},{},{}\n", 3000 + i, 30 + i % 20)).collect();
    let named = table(format!("name,mass,bill\n{rows}").as_bytes())?;
    let error = Spec::fit(&named, "name", Options::default()).unwrap_err();

    Spec::fit(&named.without(&["name"])?, "mass", Options::default())?;
    Ok(error)
}

/// A column of the inputs holds texts that nearly all differ. A category that occurs once teaches nothing.
///
/// Mend: leave the column out, on the command line with `--drop`.
fn a_column_of_names_is_to_be_learned(_: &Device) -> Result<Error> {
    let rows: String = (0..40).map(|i| format!("penguin {i},{},{}\n", 3000 + i, ["Adelie", "Gentoo"][i % 2])).collect();
    let named = table(format!("name,mass,species\n{rows}").as_bytes())?;
    let error = Spec::fit(&named, "species", Options::default()).unwrap_err();

    Spec::fit(&named, "species", Options { drop: vec!["name".into()], ..Options::default() })?;
    Ok(error)
}

/// A prediction starts from the other columns, and there are none.
///
/// Mend: look whether the delimiter is right: a table of one column is often one of many, divided by `;`.
fn a_table_has_the_target_only(_: &Device) -> Result<Error> {
    let alone = table(b"species\nAdelie\nGentoo\n")?;
    let error = Spec::fit(&alone, "species", Options::default()).unwrap_err();

    Spec::fit(&table(CSV)?, "species", Options::default())?;
    Ok(error)
}

/// The file has weights and no description of a task: a program saved it with `save_safetensors`.
///
/// Mend: load it with `load_safetensors` into the model of that program.
fn a_file_was_not_saved_by_a_task(device: &Device) -> Result<Error> {
    let mut linear = Linear::new(2, 2, &mut Init::new(DType::F32, device, &mut Generator::new(0)))?;
    linear.save_safetensors("linear.safetensors")?;
    let error = tasks::load("linear.safetensors", device).err().unwrap();

    linear.load_safetensors("linear.safetensors", device, Strict::Yes)?;
    Ok(error)
}

/// A model of tables is given a picture, or one of pictures a table.
///
/// Mend: give what the model was trained on; `task()` says what that is.
fn a_model_does_not_take_this_input(device: &Device) -> Result<Error> {
    saved(device)?;
    let model = tasks::load("penguins.safetensors", device)?;
    assert_eq!(model.task(), "tabular");
    let error = model.predict(&Image::new(1, 8, 8, vec![0.0; 64])?).unwrap_err();

    model.predict(&table(CSV)?)?;
    Ok(error)
}

/// The table lacks a column that the model was trained with, or has another. The order of the columns does not matter.
///
/// Mend: select the columns of training, which the error lists.
fn columns_of_training_are_gone(device: &Device) -> Result<Error> {
    saved(device)?;
    let model = tasks::load("penguins.safetensors", device)?;
    let error = model.predict(&table(b"bill\n39.5\n")?).unwrap_err();

    model.predict(&table(b"mass,bill\n3800,39.5\n")?)?;
    Ok(error)
}

/// There is nothing to learn from.
///
/// Mend: look whether the file is the right one.
fn a_text_is_empty(_: &Device) -> Result<Error> {
    let error = Corpus::new("", Tokens::Characters).err().unwrap();

    Corpus::new(&"the quick brown fox. ".repeat(50), Tokens::Characters)?;
    Ok(error)
}

/// Neither the training part nor the tenth that is held out may be shorter than what the model sees at once.
///
/// Mend: use a longer text, or a smaller context.
fn a_text_is_too_short_for_its_context(_: &Device) -> Result<Error> {
    let corpus = Corpus::new(&"the quick brown fox. ".repeat(50), Tokens::Characters)?;
    let error = corpus.windows(256).err().unwrap();

    corpus.windows(32)?;
    Ok(error)
}

/// A network learns to tell classes apart, and there is one folder of pictures only.
///
/// Mend: put the pictures of each class into a folder of its own.
fn pictures_are_of_one_class(device: &Device) -> Result<Error> {
    pictures("birds", &[("gull", 4)], device)?;
    let error = images::open("birds", None, 0, device).unwrap_err();

    pictures("birds", &[("heron", 4)], device)?;
    images::open("birds", None, 0, device)?;
    Ok(error)
}

/// Some pictures of each class are held out, so that a class with one picture has none left to train on.
///
/// Mend: add pictures of this class, or remove its folder.
fn a_class_has_too_few_pictures(device: &Device) -> Result<Error> {
    pictures("coast", &[("gull", 4), ("heron", 1)], device)?;
    let error = images::open("coast", None, 0, device).unwrap_err();

    pictures("coast", &[("heron", 4)], device)?;
    images::open("coast", None, 0, device)?;
    Ok(error)
}

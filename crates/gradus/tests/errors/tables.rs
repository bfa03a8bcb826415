//! Datasets, loaders, CSV files and tokenisers. An error about a file names the file, the line and the column.
//! In the snippets, `List` is a dataset of the elements of a vector.

use std::fs::write;

use crate::page::page;
use gradus::data::text::{Characters, TokenWindows, Tokenizer};
use gradus::data::{Kind, folds, idx, split};
use gradus::prelude::*;

page! {
    "Data":
    a_file_is_not_there,
    a_row_has_too_many_values,
    a_file_is_in_another_encoding,
    a_file_is_compressed,
    a_file_has_no_rows,
    two_columns_have_one_name,
    a_value_is_not_of_its_kind,
    there_is_no_such_column,
    a_column_is_no_number,
    a_value_is_missing,
    a_category_is_new,
    the_columns_changed_since_training,
    a_label_is_new,
    a_target_has_one_class_only,
    inputs_and_targets_differ_in_number,
    samples_of_a_batch_differ_in_size,
    a_dataset_panics,
    a_sample_is_asked_for_that_does_not_exist,
    an_epoch_is_shorter_than_the_position,
    a_batch_size_of_0,
    a_share_to_hold_out_is_above_1,
    more_folds_than_samples_of_a_class,
    a_character_is_not_in_the_vocabulary,
    a_text_is_shorter_than_its_windows,
    a_folder_of_mnist_is_empty,
}

/// A dataset of the elements of a vector.
struct List<T>(Vec<T>);

impl<T: Clone + Send + Sync> Dataset for List<T> {
    type Item = T;
    fn len(&self) -> usize {
        self.0.len()
    }
    fn get(&self, index: usize) -> Result<T> {
        Ok(self.0[index].clone())
    }
}

/// The path leads nowhere. The source of the error is the `std::io::Error`, to match on its kind.
///
/// Mend: a relative path starts at the folder in which the program was started, not at the folder of the program.
fn a_file_is_not_there(_: &Device) -> Result<Error> {
    let error = Table::read_csv("penguins.csv", &CsvOptions::default()).unwrap_err();

    write("penguins.csv", "mass,species\n3750,Adelie\n").unwrap();
    Table::read_csv("penguins.csv", &CsvOptions::default())?;
    Ok(error)
}

/// A row has more or fewer values than the first one. Often a text contains the delimiter and is not in quotes, or the
/// delimiter is another.
///
/// Mend: put the text in quotes, or choose the delimiter in `CsvOptions`.
fn a_row_has_too_many_values(_: &Device) -> Result<Error> {
    write("cities.csv", "city,people\nBern,134000\nWashington, D.C.,690000\n").unwrap();
    let error = Table::read_csv("cities.csv", &CsvOptions::default()).unwrap_err();

    write("cities.csv", "city,people\nBern,134000\n\"Washington, D.C.\",690000\n").unwrap();
    Table::read_csv("cities.csv", &CsvOptions::default())?;
    Ok(error)
}

/// The file is not UTF-8. Spreadsheets often write Latin-1 or UTF-16.
///
/// Mend: save it as UTF-8, or convert it: `iconv -f latin1 -t utf-8 in.csv > out.csv`.
fn a_file_is_in_another_encoding(_: &Device) -> Result<Error> {
    write("names.csv", b"name,age\nJos\xe9,41\n").unwrap();
    let error = Table::read_csv("names.csv", &CsvOptions::default()).unwrap_err();

    write("names.csv", "name,age\nJosé,41\n").unwrap();
    Table::read_csv("names.csv", &CsvOptions::default())?;
    Ok(error)
}

/// The file begins with the bytes of gzip, whatever its name is.
///
/// Mend: decompress it with `gunzip`. Files of MNIST may stay compressed.
fn a_file_is_compressed(_: &Device) -> Result<Error> {
    let error = Table::from_csv(&[0x1f, 0x8b, 8, 0], "table.csv", &CsvOptions::default()).unwrap_err();

    Table::from_csv(b"a,b\n1,2\n", "table.csv", &CsvOptions::default())?;
    Ok(error)
}

/// The file has a line of names and nothing below.
///
/// Mend: look whether the file was written to its end.
fn a_file_has_no_rows(_: &Device) -> Result<Error> {
    let error = Table::from_csv(b"mass,species\n", "empty.csv", &CsvOptions::default()).unwrap_err();

    Table::from_csv(b"mass,species\n3750,Adelie\n", "empty.csv", &CsvOptions::default())?;
    Ok(error)
}

/// A name must say which column is meant.
///
/// Mend: rename one of them, or read the file without a line of names: `header: false`.
fn two_columns_have_one_name(_: &Device) -> Result<Error> {
    let error = Table::from_csv(b"x,y,x\n1,2,3\n", "points.csv", &CsvOptions::default()).unwrap_err();

    Table::from_csv(b"x,y,z\n1,2,3\n", "points.csv", &CsvOptions::default())?;
    Ok(error)
}

/// A column was declared to hold numbers, and a value is none.
///
/// Mend: correct the value, or list what stands for a missing one in `CsvOptions::missing`.
fn a_value_is_not_of_its_kind(_: &Device) -> Result<Error> {
    let options = CsvOptions { kinds: vec![("mass".into(), Kind::Number)], ..CsvOptions::default() };
    let error = Table::from_csv(b"mass,sex\n3750,m\n?,f\n", "penguins.csv", &options).unwrap_err();

    let options = CsvOptions { missing: vec!["?".into()], ..options };
    Table::from_csv(b"mass,sex\n3750,m\n?,f\n", "penguins.csv", &options)?;
    Ok(error)
}

/// The table has no column of this name; the error lists those that it has. Names are compared with upper and lower case.
///
/// Mend: copy the name from the list.
fn there_is_no_such_column(_: &Device) -> Result<Error> {
    let table = Table::from_csv(b"mass,Species\n3750,Adelie\n", "penguins.csv", &CsvOptions::default())?;
    let error = table.split_target("species").unwrap_err();

    let table = Table::from_csv(b"mass,Species\n3750,Adelie\n", "penguins.csv", &CsvOptions::default())?;
    table.split_target("Species")?;
    Ok(error)
}

/// `numbers` reads a column of numbers, and this one holds categories, booleans or texts.
///
/// Mend: encode categories with `labels` or a `Preprocessor`.
fn a_column_is_no_number(_: &Device) -> Result<Error> {
    let table = Table::from_csv(b"mass,sex\n3750,m\n3800,f\n", "penguins.csv", &CsvOptions::default())?;
    let error = table.column("sex")?.numbers().unwrap_err();

    let sex = table.column("sex")?;
    sex.labels(&sex.classes())?;
    Ok(error)
}

/// A missing value has no number.
///
/// Mend: fill it in with a `Preprocessor`, which takes the mean of the training table, or leave the row out.
fn a_value_is_missing(device: &Device) -> Result<Error> {
    let table = Table::from_csv(b"mass,bill\n3750,39.1\n,38.6\n", "penguins.csv", &CsvOptions::default())?;
    let error = table.to_tensor(device).unwrap_err();

    Preprocessor::fit(&table, PreprocessOptions::default())?.transform(&table, device)?;
    Ok(error)
}

/// The table has a category that the training table did not have.
///
/// Mend: correct it if it is misspelt, or let unknown categories count as none of the known ones.
fn a_category_is_new(device: &Device) -> Result<Error> {
    use gradus::data::UnknownCategory;
    let train = Table::from_csv(b"island\nBiscoe\nDream\n", "train.csv", &CsvOptions::default())?;
    let new = Table::from_csv(b"island\nDream\nTorgersen\n", "new.csv", &CsvOptions::default())?;
    let error = Preprocessor::fit(&train, PreprocessOptions::default())?.transform(&new, device).unwrap_err();

    let options = PreprocessOptions { unknown_category: UnknownCategory::None, ..Default::default() };
    Preprocessor::fit(&train, options)?.transform(&new, device)?;
    Ok(error)
}

/// A column of the training table is gone, or another has come. The model would read the wrong numbers.
///
/// Mend: select the columns of training, in any order of the file.
fn the_columns_changed_since_training(device: &Device) -> Result<Error> {
    let train = Table::from_csv(b"mass,bill\n3750,39.1\n3800,38.6\n", "train.csv", &CsvOptions::default())?;
    let preprocessor = Preprocessor::fit(&train, PreprocessOptions::default())?;
    let new = Table::from_csv(b"id,mass,bill\n1,3250,40.3\n", "new.csv", &CsvOptions::default())?;
    let error = preprocessor.transform(&new, device).unwrap_err();

    preprocessor.transform(&new.select(&["mass", "bill"])?, device)?;
    Ok(error)
}

/// A label of the table is none of the classes with which the model was trained.
///
/// Mend: leave such rows out, or train a model that has the class.
fn a_label_is_new(_: &Device) -> Result<Error> {
    let table = Table::from_csv(b"species\nAdelie\nGentoo\nChinstrap\n", "new.csv", &CsvOptions::default())?;
    let classes = ["Adelie".to_owned(), "Gentoo".to_owned()];
    let error = table.column("species")?.labels(&classes).unwrap_err();

    table.rows(&[0, 1])?.column("species")?.labels(&classes)?;
    Ok(error)
}

/// All rows have one label, so there is nothing to tell apart.
///
/// Mend: choose another target, or look why the other classes are gone.
fn a_target_has_one_class_only(_: &Device) -> Result<Error> {
    let table = Table::from_csv(b"species\nAdelie\nAdelie\n", "penguins.csv", &CsvOptions::default())?;
    let species = table.column("species")?;
    let error = species.labels(&species.classes()).unwrap_err();

    let table = Table::from_csv(b"species\nAdelie\nGentoo\n", "penguins.csv", &CsvOptions::default())?;
    let species = table.column("species")?;
    species.labels(&species.classes())?;
    Ok(error)
}

/// A row of inputs belongs to a row of targets, and there are more of one.
///
/// Mend: look which of both files is short.
fn inputs_and_targets_differ_in_number(device: &Device) -> Result<Error> {
    let (x, y) = (Tensor::zeros([10, 2], DType::F32, device)?, Tensor::zeros([9], DType::I64, device)?);
    let error = TensorDataset::new(x.clone(), y.clone()).unwrap_err();

    TensorDataset::new(x.narrow(0, 0, 9)?, y)?;
    Ok(error)
}

/// The samples of a batch are joined to one tensor, so they have one size.
///
/// Mend: wrap lists in `Sequence`, which pads them and keeps their lengths; resize images, or crop them at random.
fn samples_of_a_batch_differ_in_size(device: &Device) -> Result<Error> {
    let sentences = vec![vec![1i64, 2, 3], vec![4, 5]];
    let error =
        DataLoader::new(List(sentences.clone()), device).batch_size(2).build()?.epoch(0)?.next().unwrap().unwrap_err();

    let padded: Vec<Sequence<i64>> = sentences.into_iter().map(Sequence::new).collect();
    DataLoader::new(List(padded), device).batch_size(2).build()?.epoch(0)?.next().unwrap()?;
    Ok(error)
}

/// Code of yours in `Dataset::get` panicked, perhaps on a thread of a worker. The loader turns the panic into an error
/// that names the sample.
///
/// Mend: return a `Result` from `get`; the message is that of the panic.
fn a_dataset_panics(device: &Device) -> Result<Error> {
    struct Rows(Vec<f32>);
    impl Dataset for Rows {
        type Item = f32;
        fn len(&self) -> usize {
            4
        }
        fn get(&self, index: usize) -> Result<f32> {
            Ok(self.0[index])
        }
    }
    let loader = DataLoader::new(Rows(vec![0.5, 1.5]), device).batch_size(1).build()?;
    let error = loader.epoch(0)?.find_map(Result::err).unwrap();

    DataLoader::new(Rows(vec![0.5, 1.5, 2.5, 3.5]), device)
        .batch_size(1)
        .build()?
        .epoch(0)?
        .try_for_each(|x| x.map(drop))?;
    Ok(error)
}

/// A dataset is asked for a sample beyond its end, by an index of `subset` or by a call of yours.
///
/// Mend: indices run from 0 to `len() - 1`.
fn a_sample_is_asked_for_that_does_not_exist(_: &Device) -> Result<Error> {
    let digits = gradus::data::digits::load()?;
    let error = digits.clone().subset(vec![0, 1797]).err().unwrap();

    digits.subset(vec![0, 1796])?;
    Ok(error)
}

/// A position that was saved is that of a longer epoch: the dataset, the batch size or the sampler changed.
///
/// Mend: resume with what the position was saved with.
fn an_epoch_is_shorter_than_the_position(device: &Device) -> Result<Error> {
    let loader = DataLoader::new(List(vec![1.0f32; 10]), device).batch_size(2).build()?;
    let error = loader.epoch_from(0, 6).err().unwrap();

    loader.epoch_from(0, 5)?;
    Ok(error)
}

/// A batch has at least one sample.
///
/// Mend: 1 is the smallest batch.
fn a_batch_size_of_0(device: &Device) -> Result<Error> {
    let error = DataLoader::new(List(vec![1.0f32; 10]), device).batch_size(0).build().err().unwrap();

    DataLoader::new(List(vec![1.0f32; 10]), device).batch_size(1).build()?;
    Ok(error)
}

/// The share of samples that is held out is a fraction, not a number of per cent or of samples.
///
/// Mend: 0.2 is a fifth.
fn a_share_to_hold_out_is_above_1(_: &Device) -> Result<Error> {
    let error = split::random(1000, 20.0, 0).unwrap_err();

    split::random(1000, 0.2, 0)?;
    Ok(error)
}

/// Each fold of a stratified cross-validation has samples of each class, and a class has fewer samples than there are
/// folds.
///
/// Mend: use fewer folds, or leave the class out.
fn more_folds_than_samples_of_a_class(_: &Device) -> Result<Error> {
    let labels = [0, 0, 0, 0, 0, 1, 1, 1];
    let error = folds::stratified_k_fold(&labels, 5, None).unwrap_err();

    folds::stratified_k_fold(&labels, 3, None)?;
    Ok(error)
}

/// A tokeniser of characters knows those of its training text.
///
/// Mend: train it on a text that has all characters, or use bytes or byte pairs, which know everything.
fn a_character_is_not_in_the_vocabulary(_: &Device) -> Result<Error> {
    let characters = Characters::of("to be or not to be");
    let error = characters.encode("to see").unwrap_err();

    characters.encode("to be")?;
    Ok(error)
}

/// A window has so many tokens and the one that follows, and the text has fewer.
///
/// Mend: use shorter windows, or a longer text.
fn a_text_is_shorter_than_its_windows(_: &Device) -> Result<Error> {
    let error = TokenWindows::new((0..64).collect(), 64, 64).err().unwrap();

    TokenWindows::new((0..65).collect(), 64, 64)?;
    Ok(error)
}

/// MNIST and Fashion-MNIST are four files with fixed names, plain or compressed with gzip, and the folder lacks one.
///
/// Mend: download them into the folder.
fn a_folder_of_mnist_is_empty(_: &Device) -> Result<Error> {
    std::fs::create_dir("mnist").unwrap();
    let error = idx::read_folder("mnist", idx::Part::Train).err().unwrap();

    gradus::data::digits::load()?;
    Ok(error)
}

//! The programs in the README, in the book and in other pages of `docs`, which are compiled and run with the doc tests.

/// Names a page whose programs are tested.
macro_rules! page {
    ($name:ident, $path:literal) => {
        #[doc = include_str!(concat!("../../../", $path))]
        struct $name;
    };
}

page!(AutogradIn100Lines, "docs/book/src/autograd-in-100-lines.md");

#[cfg(feature = "cpu")]
mod on_the_cpu {
    page!(Readme, "README.md");
    page!(Introduction, "docs/book/src/introduction.md");
    page!(FirstNetwork, "docs/book/src/first-network.md");
    page!(YourData, "docs/book/src/your-data.md");
    page!(YourLayer, "docs/book/src/your-layer.md");
    page!(YourOperation, "docs/book/src/your-operation.md");
    page!(Autograd, "docs/book/src/autograd.md");
    page!(WritesInPlace, "docs/book/src/writes-in-place.md");
    page!(Devices, "docs/book/src/devices.md");
    page!(YourBackend, "docs/book/src/your-backend.md");
    page!(TrainingForReal, "docs/book/src/training-for-real.md");
    page!(TrainingWithoutCode, "docs/book/src/training-without-code.md");
    page!(FromPyTorch, "docs/book/src/from-pytorch.md");
    page!(SavingAndDeploying, "docs/book/src/saving-and-deploying.md");
    page!(SaveAndResume, "docs/book/src/save-and-resume.md");
    page!(Speed, "docs/book/src/speed.md");
    page!(CapturedSteps, "docs/book/src/captured-steps.md");
    page!(Reproducibility, "docs/book/src/reproducibility.md");
    page!(Errors, "docs/book/src/errors.md");
    #[cfg(feature = "dist")]
    page!(ManyRanks, "docs/book/src/many-ranks.md");
    #[cfg(feature = "onnx")]
    page!(Onnx, "docs/onnx.md");
}

//! The programs in the README and in the pages of `docs`, which are compiled and run with the doc tests.

/// Names a page whose programs are tested.
macro_rules! page {
    ($name:ident, $path:literal) => {
        #[doc = include_str!(concat!("../../../", $path))]
        struct $name;
    };
}

page!(Readme, "README.md");
page!(AddAnOp, "docs/add-an-op.md");
page!(AutogradIn100Lines, "docs/book/src/autograd-in-100-lines.md");

#[cfg(feature = "cpu")]
mod on_the_cpu {
    page!(CapturedSteps, "docs/book/src/captured-steps.md");
    page!(Errors, "docs/book/src/errors.md");
    page!(FromPyTorch, "docs/book/src/from-pytorch.md");
    page!(SaveAndResume, "docs/book/src/save-and-resume.md");
    page!(WritesInPlace, "docs/book/src/writes-in-place.md");
    page!(YourBackend, "docs/book/src/your-backend.md");
    #[cfg(feature = "onnx")]
    page!(Onnx, "docs/onnx.md");
}

"""Compiles the kernels of this folder to PTX with NVRTC: compile.py [path of libnvrtc.so].

The library is in the package nvidia-cuda-nvrtc of PyPI. The files that it writes are kept beside their sources.
"""

import ctypes
import os
import pathlib
import sys


# The headers of CUDA, where NVRTC's package brings them.
HEADERS = [str(found) for folder in sys.path for found in pathlib.Path(folder).glob("nvidia/cu*/include")]


def library():
    if len(sys.argv) > 1:
        return sys.argv[1]
    for folder in sys.path:
        for found in pathlib.Path(folder).glob("nvidia/cu*/lib/libnvrtc.so.*"):
            return str(found)
    raise SystemExit("libnvrtc.so was not found; pip install nvidia-cuda-nvrtc, or give its path")


def compile(nvrtc, source):
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.read_bytes(), source.name.encode(), 0, None, None)
    flags = [b"--gpu-architecture=compute_80", b"-lineinfo", b"--std=c++17"]
    flags += [f"--include-path={path}".encode() for path in HEADERS]
    failed = nvrtc.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
    get = nvrtc.nvrtcGetProgramLog if failed else nvrtc.nvrtcGetPTX
    length = nvrtc.nvrtcGetProgramLogSize if failed else nvrtc.nvrtcGetPTXSize
    size = ctypes.c_size_t()
    length(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    get(program, text)
    if failed:
        raise SystemExit(text.value.decode())
    source.with_suffix(".ptx").write_bytes(text.value)


nvrtc = ctypes.CDLL(library())
folder = pathlib.Path(__file__).resolve().parent
# NVRTC puts the working directory before the name of the source.
os.chdir("/")
for source in sorted(folder.glob("*.cu")):
    compile(nvrtc, source)
    print(source.with_suffix(".ptx"))

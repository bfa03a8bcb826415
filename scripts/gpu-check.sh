#!/usr/bin/env bash
# Checks Gradus on a machine with an NVIDIA GPU, and writes what it finds to target/gpu-check/report.txt.
#
#   scripts/gpu-check.sh --build     builds the programs into target/gpu-check, on a machine with cargo
#   scripts/gpu-check.sh             runs them, on a machine with a GPU; it needs neither cargo nor a network
#   scripts/gpu-check.sh checks      only what is right or wrong; `speeds`: only what is measured
#   scripts/gpu-check.sh --small     runs them with small sizes over the stand-in for the driver, on any machine
#
# NVRTC and NCCL are needed: they come with PyTorch, NVRTC also with the CUDA toolkit. With PyTorch, the speeds are compared with its own, in the
# same run. WebGPU is checked and measured too where Vulkan finds the GPU. CASES is the number of random cases of each
# operation (10,000; 0 for none), SANITIZE=0 leaves compute-sanitizer out, LIMIT ends a step after so many seconds (1800). A step
# that fails does not end the others; the exit code is 1 if one failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out="$PWD/target/gpu-check"
mkdir -p "$out"

# The program that cargo makes for a test or a benchmark, whose name has a hash.
made() {
  "$@" --no-run --message-format=json | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -1
}

build() {
  set -e
  cargo build --release -p gradus-cuda --example conform_cuda
  cargo build --release -p gradus-wgpu --example conform
  cargo build --release -p gradus --features cuda,wgpu --example gpu_rows
  cargo build --release -p gradus-cli --features nccl,wgpu
  cargo build --release -p gradus-dist --features nccl,mpi --example nccl_check
  cargo build --release -p gradus-ptx
  local release="${CARGO_TARGET_DIR:-target}/release"
  cp "$release/examples/conform_cuda" "$release/examples/gpu_rows" "$release/examples/nccl_check" \
    "$release/gradus" "$release/libgradus_ptx.so" "$out/"
  cp "$release/examples/conform" "$out/conform_wgpu"
  cp "$(made cargo test --release -p gradus --features cuda,wgpu --test golden)" "$out/golden"
  cp "$(made cargo bench -p gradus-wgpu --bench handwritten)" "$out/bench_wgpu"
  (cd "$out" && strip conform_cuda conform_wgpu gpu_rows nccl_check gradus golden bench_wgpu 2>/dev/null) || true
  ls -l "$out"
}

size=full
conform=()
steps="checks speeds"
case "${1:-}" in
  --build)
    build
    exit
    ;;
  --small)
    size=small
    conform=(fill)
    export GRADUS_CUDA_DRIVER="${GRADUS_CUDA_DRIVER:-$out/libgradus_ptx.so}" GRADUS_CUDA_EXACT=1
    export GRADUS_NCCL="$GRADUS_CUDA_DRIVER" GRADUS_PTX_DEVICES="${GRADUS_PTX_DEVICES:-2}"
    ;;
  checks | speeds) steps="$1" ;;
  '') ;;
  *)
    sed -n '2,12p' "$0" | sed 's/^# \{0,1\}//' >&2
    exit 2
    ;;
esac

programs=(conform_cuda golden gradus gpu_rows nccl_check)
[ "$size" = full ] && programs+=(conform_wgpu bench_wgpu)
for program in "${programs[@]}"; do
  [ -x "$out/$program" ] || { echo "gpu-check: $out/$program is missing; run $0 --build first" >&2; exit 2; }
done
python="${PYTHON:-python3}"
report="$out/report.txt"
failed=()
: >"$report"

say() { echo "$*" | tee -a "$report"; }

# Starts a step: its name, and a command, which may print as much as it likes.
start() {
  local name="$1" from
  shift
  rm -f "$out/$name.end" "$out/$name.log"
  (
    from="$(date +%s)"
    timeout "${LIMIT:-1800}" "$@" >"$out/$name.log" 2>&1
    echo "$? $(($(date +%s) - from)) $*" >"$out/$name.end"
  ) &
}

# Waits for what was started, and reports the last lines of each step that is named, with as many lines as follow the colon.
finish() {
  local step name code seconds command
  wait
  for step in "$@"; do
    name="${step%:*}"
    code=1 seconds=0 command='it did not end by itself'
    [ -f "$out/$name.end" ] && read -r code seconds command <"$out/$name.end"
    say "== $name: $command"
    tail -n "${step#*:}" "$out/$name.log" | cut -c1-600 | tee -a "$report"
    if [ "$code" -eq 0 ]; then
      say "== $name: ok, $seconds s"
    else
      say "== $name: FAILED with code $code, $seconds s; all of it is in $out/$name.log"
      failed+=("$name")
    fi
  done
}

# One step alone.
step() {
  local name="${1%:*}" shown="$1"
  shift
  start "$name" "$@"
  finish "$shown"
}

has_vulkan() { [ "$size" = full ] && "$out/gradus" devices 2>/dev/null | grep -A 1 '^wgpu' | grep -q NVIDIA; }

say "gpu-check, $(date -u +%Y-%m-%dT%H:%MZ), $size, $(git rev-parse --short HEAD 2>/dev/null || echo 'no git')"
if command -v nvidia-smi >/dev/null; then
  nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv,noheader 2>&1 | tee -a "$report"
else
  say "no nvidia-smi here"
fi
step devices:12 "$out/gradus" devices

# These share the GPU, since most of their time is that of compilers.
checks() {
  local names=(conformance:12 golden:3 digits:2) epochs=()
  [ "$size" = small ] && epochs=(--epochs 1)
  start conformance "$out/conform_cuda" "${conform[@]}"
  GRADUS_REQUIRE_CUDA=1 start golden "$out/golden" on_cuda
  start digits "$out/gradus" train digits --device cuda --force --json --out "$out/digits" "${epochs[@]}"
  if has_vulkan; then
    start conformance_wgpu "$out/conform_wgpu"
    GRADUS_REQUIRE_WGPU=1 start golden_wgpu "$out/golden" on_webgpu
    start digits_wgpu "$out/gradus" train digits --device wgpu --force --json --out "$out/digits_wgpu"
    names+=(conformance_wgpu:8 golden_wgpu:3 digits_wgpu:2)
  else
    say "Vulkan finds no NVIDIA GPU here: WebGPU is not checked on it"
  fi
  finish "${names[@]}"
  # One rank for each GPU; its times are those of a GPU that nothing else uses.
  if [ "$size" = small ]; then
    step nccl:2 "$out/nccl_check" small
  else
    step nccl:2 "$out/nccl_check"
    local gpus
    gpus="$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')"
    if [ "$gpus" -lt 2 ]; then
      say "one GPU: transfers between GPUs are not checked"
    elif command -v mpirun >/dev/null; then
      export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
      step nccl_mpi:2 mpirun -n "$gpus" "$out/nccl_check" mpi
      step digits_ranks:2 mpirun -n 2 "$out/gradus" train digits --device cuda --force --json --out "$out/digits_ranks"
    else
      say "no mpirun here: NCCL is not checked between processes"
    fi
  fi
  [ "$size" = full ] || return
  [ "${CASES:-10000}" = 0 ] || step random_cases:8 "$out/conform_cuda" --each "${CASES:-10000}" --seed 7
  local sanitizer
  sanitizer="$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)"
  if [ -n "$sanitizer" ] && [ "${SANITIZE:-1}" = 1 ]; then
    for tool in memcheck racecheck initcheck; do
      GRADUS_CUDA_EXACT=1 start "$tool" "$sanitizer" --target-processes all --tool "$tool" --error-exitcode 9 \
        "$out/conform_cuda" --brief --jobs 5
    done
    finish memcheck:5 racecheck:5 initcheck:5
  else
    say "compute-sanitizer is not run: memory and races of kernels are not checked on the GPU"
  fi
}

# Speeds: ours, PyTorch's, and the ratio, row by row.
speeds() {
  step speed:20 "$out/gpu_rows" cuda "$size"
  GRADUS_CUDA_TF32=1 step tf32:5 "$out/gpu_rows" cuda "$size" matmul_f32
  grep '^{' "$out/speed.log" >"$out/gradus.jsonl" || true
  if [ "$size" = full ] && "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    step torch:20 "$python" scripts/gpu_torch.py
    grep '^{' "$out/torch.log" >"$out/torch.jsonl" || true
    step compared:40 "$python" scripts/gpu_torch.py --compare "$out/gradus.jsonl" "$out/torch.jsonl"
  else
    say "no PyTorch with a GPU here: the speeds have nothing beside them"
  fi
  if has_vulkan; then
    step speed_wgpu:40 "$out/bench_wgpu"
  fi
}

for part in $steps; do "$part"; done

if [ "${#failed[@]}" -eq 0 ]; then
  say "gpu-check: everything passed"
else
  say "gpu-check: FAILED: ${failed[*]}"
  exit 1
fi

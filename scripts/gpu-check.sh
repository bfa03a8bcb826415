#!/usr/bin/env bash
# Checks Gradus on a machine with an NVIDIA GPU, and writes what it finds to target/gpu-check/report.txt.
#
#   scripts/gpu-check.sh --build     builds the programs into target/gpu-check, on a machine with cargo
#   scripts/gpu-check.sh             runs them, on a machine with a GPU; it needs neither cargo nor a network
#   scripts/gpu-check.sh --small     runs them with small sizes over the stand-in for the driver, on any machine
#
# NVRTC is needed: it comes with the CUDA toolkit and with PyTorch. With PyTorch, the speeds are compared with its own, in the
# same run. A step that fails does not end the others; the exit code is 1 if one failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out="$PWD/target/gpu-check"
mkdir -p "$out"

build() {
  set -e
  cargo build --release -p gradus-cuda --example conform_cuda
  cargo build --release -p gradus --features cuda --example gpu_rows
  cargo build --release -p gradus-cli --features cuda
  cargo build --release -p gradus-ptx
  local release="${CARGO_TARGET_DIR:-target}/release"
  cp "$release/examples/conform_cuda" "$release/examples/gpu_rows" "$release/gradus" "$release/libgradus_ptx.so" "$out/"
  # The golden tests are a program whose name has a hash.
  local golden
  golden="$(cargo test --release -p gradus --features cuda --test golden --no-run --message-format=json |
    sed -n 's/.*"executable":"\([^"]*\/golden-[^"]*\)".*/\1/p' | tail -1)"
  cp "$golden" "$out/golden"
  strip "$out/conform_cuda" "$out/gpu_rows" "$out/gradus" "$out/golden" 2>/dev/null || true
  ls -l "$out"
}

size=full
conform=(--rounds 10000 --seed 7)
case "${1:-}" in
  --build)
    build
    exit
    ;;
  --small)
    size=small
    conform=(fill)
    export GRADUS_CUDA_DRIVER="${GRADUS_CUDA_DRIVER:-$out/libgradus_ptx.so}" GRADUS_CUDA_EXACT=1
    ;;
  '') ;;
  *)
    sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac

for program in conform_cuda golden gradus gpu_rows; do
  [ -x "$out/$program" ] || { echo "gpu-check: $out/$program is missing; run $0 --build first" >&2; exit 2; }
done
python="${PYTHON:-python3}"
report="$out/report.txt"
failed=()
: >"$report"

say() { echo "$*" | tee -a "$report"; }

# A step: its name, and a command, which may print as much as it likes; the report has its last lines.
step() {
  local name="$1" log="$out/$1.log" start end code
  shift
  say "== $name: $*"
  start="$(date +%s)"
  "$@" >"$log" 2>&1
  code=$?
  end="$(date +%s)"
  tail -n "${lines:-5}" "$log" | tee -a "$report"
  if [ "$code" -eq 0 ]; then
    say "== $name: ok, $((end - start)) s"
  else
    say "== $name: FAILED with code $code, $((end - start)) s; all of it is in $log"
    failed+=("$name")
  fi
}

say "gpu-check, $(date -u +%Y-%m-%dT%H:%MZ), $size, $(git rev-parse --short HEAD 2>/dev/null || echo 'no git')"
if command -v nvidia-smi >/dev/null; then
  nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv,noheader 2>&1 | tee -a "$report"
else
  say "no nvidia-smi here"
fi
step devices "$out/gradus" devices
lines=12 step conformance "$out/conform_cuda" "${conform[@]}"
GRADUS_REQUIRE_CUDA=1 step golden "$out/golden" on_cuda
if [ "$size" = full ]; then
  step digits "$out/gradus" train digits --device cuda --force --json --out "$out/digits"
else
  step digits "$out/gradus" train digits --device cuda --force --json --out "$out/digits" --epochs 1
fi
sanitizer="$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)"
if [ -n "$sanitizer" ] && [ "$size" = full ]; then
  for tool in memcheck racecheck initcheck; do
    GRADUS_CUDA_EXACT=1 step "$tool" "$sanitizer" --target-processes all --tool "$tool" --error-exitcode 9 \
      "$out/conform_cuda" --brief
  done
else
  say "no compute-sanitizer here: memory and races of kernels were not checked on the GPU"
fi

# Speeds: ours, PyTorch's, and the ratio, row by row.
lines=20 step speed "$out/gpu_rows" cuda "$size"
GRADUS_CUDA_TF32=1 step tf32 "$out/gpu_rows" cuda "$size" matmul_f32
grep '^{' "$out/speed.log" >"$out/gradus.jsonl" || true
if [ "$size" = full ] && "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  lines=20 step torch "$python" scripts/gpu_torch.py
  grep '^{' "$out/torch.log" >"$out/torch.jsonl" || true
  lines=30 step compared "$python" scripts/gpu_torch.py --compare "$out/gradus.jsonl" "$out/torch.jsonl"
else
  say "no PyTorch with a GPU here: the speeds have nothing beside them"
fi

if [ "${#failed[@]}" -eq 0 ]; then
  say "gpu-check: everything passed"
else
  say "gpu-check: FAILED: ${failed[*]}"
  exit 1
fi

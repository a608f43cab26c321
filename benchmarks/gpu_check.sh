#!/usr/bin/env bash
# Check a machine with a GPU, torch and transformers, no network needed: see benchmarks/gpu_check.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PYTHONPATH=. HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
exec "${PYTHON:-python3}" benchmarks/gpu_check.py "$@"

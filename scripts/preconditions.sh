#!/bin/sh
# Says in one line what is missing before anything is installed. Usage: preconditions.sh PYTHON
python=${1:-python3}

fail() {
    echo "roundoff: $1" >&2
    exit 1
}

command -v "$python" >/dev/null 2>&1 ||
    fail "$python was not found. Install Python 3.11 or newer (Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install python), or name one: make PYTHON=/path/to/python3.12"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$python is $("$python" -c 'import platform; print(platform.python_version())'), and roundoff needs 3.11 or newer. Name a newer one: make PYTHON=python3.12"
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "$python cannot make virtual environments. Debian, Ubuntu: apt install python3-venv"
free=$(df -Pk . | awk 'NR == 2 { print $4 }')
[ "${free:-9999999}" -ge 2500000 ] ||
    fail "only $((free / 1024)) MB are free here; PyTorch and the rest need about 2.5 GB"
